//! Compares tree attention, rotation and the fused optimizer with dense double precision, forward and gradients.

use std::cell::RefCell;

use grpo_native::attention::{self, AttentionError, Piece, Saving};
use grpo_native::fused;
use grpo_native::optimizer::{AdamStep, adamw, square_sum};
use proptest::prelude::*;
use tch::{Device, Kind, Tensor};

use crate::tested;

/// Distance relative to the expected value, unless that is nearly 0: values that cancel exactly, such as one token's
/// gradient, are rounding errors only.
pub(crate) fn apart(a: &Tensor, b: &Tensor) -> f64 {
    let (a, b) = (a.to_kind(Kind::Double), b.to_kind(Kind::Double));
    (a - &b).norm().double_value(&[]) / b.norm().double_value(&[]).max(1.0)
}

/// Half of bf16's last place is 2^-9 of a value. Gradients of scores are differences of sums over a head, one of them
/// of rounded outputs: where they cancel, a few times as much.
const BF16: f64 = 3e-2;

/// Rounds to values of bf16.
fn rounded(x: &Tensor) -> Tensor {
    x.to_kind(Kind::BFloat16).to_kind(Kind::Double)
}

/// Tokens in the order of a walk over a random tree, each with the tokens that it sees: itself and its ancestors.
pub(crate) struct Tree {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) sees: Vec<Vec<usize>>,
}

/// A tree of paths: each path hangs on a place of an earlier path, and all paths at one place are contiguous.
/// `lengths`: the length of each path; `hangs`: the place on which it hangs.
fn tree(lengths: &[usize], hangs: &[usize]) -> Tree {
    fn path(at: usize, above: &[usize], lengths: &[usize], hangs: &[usize], tree: &mut Tree) {
        let begin = tree.sees.len();
        for i in 0..lengths[at] {
            let own = (begin..=begin + i).collect::<Vec<_>>();
            tree.sees.push([above, &own].concat());
        }
        let own = begin..begin + lengths[at];
        tree.pieces.push(Piece {
            queries: own.clone(),
            keys: own,
            causal: true,
        });
        // Path i > 0 hangs on path (i - 1) / 2; two at one place are one piece.
        let children: Vec<usize> = [2 * at + 1, 2 * at + 2]
            .into_iter()
            .filter(|c| *c < lengths.len())
            .collect();
        let place = |child: &usize| 1 + hangs[*child] % lengths[at];
        let together = children.len() == 2 && place(&children[0]) == place(&children[1]);
        let groups: Vec<Vec<usize>> = if together {
            vec![children]
        } else {
            children.into_iter().map(|child| vec![child]).collect()
        };
        for group in groups {
            let end = begin + place(&group[0]);
            let above: Vec<usize> = above.iter().copied().chain(begin..end).collect();
            let first = tree.sees.len();
            for child in group {
                path(child, &above, lengths, hangs, tree);
            }
            tree.pieces.push(Piece {
                queries: first..tree.sees.len(),
                keys: begin..end,
                causal: false,
            });
        }
    }
    let mut tree = Tree {
        pieces: vec![],
        sees: vec![],
    };
    path(0, &[], lengths, hangs, &mut tree);
    tree
}

/// Attention by a mask and a softmax.
fn dense(q: &Tensor, k: &Tensor, v: &Tensor, tree: &Tree) -> Tensor {
    let n = tree.sees.len() as i64;
    let mut mask = vec![f64::NEG_INFINITY; (n * n) as usize];
    for (token, sees) in tree.sees.iter().enumerate() {
        for other in sees {
            mask[token * n as usize + other] = 0.0;
        }
    }
    let mask = Tensor::from_slice(&mask).view([n, n]).to_device(q.device());
    let repeat = |x: &Tensor| {
        x.repeat_interleave_self_int(q.size()[1] / k.size()[1], 1, None)
            .transpose(0, 1)
    };
    let scores = q.transpose(0, 1).matmul(&repeat(k).transpose(1, 2)) / (q.size()[2] as f64).sqrt();
    (scores + mask)
        .softmax(-1, Kind::Double)
        .matmul(&repeat(v))
        .transpose(0, 1)
}

/// Output and the gradients of <output, above> in q, k and v.
fn with_gradients(x: [&Tensor; 3], above: &Tensor, f: impl Fn(&Tensor, &Tensor, &Tensor) -> Tensor) -> [Tensor; 4] {
    let [q, k, v] = x.map(|x| x.detach().set_requires_grad(true));
    let y = f(&q, &k, &v);
    (&y * above).sum(y.kind()).backward();
    [y.detach(), q.grad(), k.grad(), v.grad()]
}

pub(crate) fn holds(tree: &Tree, groups: i64, in_group: i64, d: i64, seed: i64) {
    tch::manual_seed(seed);
    let n = tree.sees.len() as i64;
    let normal = |heads: i64| Tensor::randn([n, heads, d], (Kind::Double, tested()));
    // Rounded first: bf16 is compared on inputs that it can represent.
    let [q, k, v, above] = [groups * in_group, groups, groups, groups * in_group].map(|heads| rounded(&normal(heads)));
    attention::check(&tree.pieces, n as usize).unwrap();
    let wanted = with_gradients([&q, &k, &v], &above, |q, k, v| dense(q, k, v, tree));
    // bf16 keeps 8 bits: the output and the gradients are rounded, and so are the probabilities in between.
    for (kind, bound) in [(Kind::Double, 1e-12), (Kind::Float, 1e-5), (Kind::BFloat16, BF16)] {
        let [q, k, v, above] = [&q, &k, &v, &above].map(|x| x.to_kind(kind));
        let compute = || {
            with_gradients([&q, &k, &v], &above, |q, k, v| {
                attention::tree(q, k, v, &tree.pieces).unwrap()
            })
        };
        // A first pass without a graph, as for a block that is computed again.
        let saving = || {
            let mut saving = Saving::Next;
            let _ = tch::no_grad(|| attention::tree_saving(&q, &k, &v, &tree.pieces, &mut saving)).unwrap();
            let saving = RefCell::new(saving);
            with_gradients([&q, &k, &v], &above, |q, k, v| {
                attention::tree_saving(q, k, v, &tree.pieces, &mut saving.borrow_mut()).unwrap()
            })
        };
        for (way, got) in [
            ("kernels", compute()),
            ("operations", grpo_native::generic(compute)),
            ("kernels, saved", saving()),
            ("operations, saved", grpo_native::generic(saving)),
        ] {
            for (name, (got, wanted)) in ["output", "dq", "dk", "dv"].iter().zip(got.iter().zip(&wanted)) {
                assert_eq!(got.kind(), kind);
                let apart = apart(got, wanted);
                assert!(
                    apart < bound,
                    "{name} in {kind:?} by {way}: {apart:e} apart, {:?}",
                    tree.pieces
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn attention_over_any_tree_and_its_gradients_are_those_of_a_dense_mask(
        lengths in prop::collection::vec(1usize..24, 1..9), hangs in prop::collection::vec(0usize..24, 9),
        groups in 1i64..4, in_group in 1i64..4, d in 1i64..9, seed in 0i64..1000,
    ) {
        // A GPU's flash attention has heads of multiples of eight.
        let step = if tested().is_cuda() { 8 } else { 2 };
        holds(&tree(&lengths, &hangs), groups, in_group, step * d, seed);
    }
}

#[test]
fn runs_longer_than_the_kernels_tiles_are_exact_too() {
    holds(&tree(&[700, 90, 600], &[0, 699, 699]), 2, 2, 16, 3);
}

#[test]
fn a_layout_that_cannot_be_computed_is_refused_by_its_piece() {
    let piece = |queries: std::ops::Range<usize>, keys: std::ops::Range<usize>, causal| Piece { queries, keys, causal };
    let cases = [
        (vec![piece(0..4, 0..4, true)], 5, "no causal piece"),
        (vec![piece(0..4, 0..4, true), piece(3..5, 3..5, true)], 5, "has two"),
        (vec![piece(2..5, 0..2, false)], 5, "no causal piece before"),
        (vec![piece(0..6, 0..6, true)], 5, "behind the last token"),
        (vec![piece(0..5, 0..4, true)], 5, "not the same"),
        (vec![piece(0..5, 0..5, true), piece(2..2, 0..1, false)], 5, "empty"),
    ];
    for (pieces, n, word) in cases {
        let error = attention::check(&pieces, n).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    let x = Tensor::zeros([4, 2, 8], (Kind::Float, Device::Cpu));
    let error = attention::tree(&x, &x, &x, &[piece(0..5, 0..5, true)]).unwrap_err();
    assert!(matches!(error, AttentionError::Layout { at: 0, .. }), "{error}");
    let odd = Tensor::zeros([4, 3, 8], (Kind::Float, Device::Cpu));
    let error = attention::tree(&x, &odd, &odd, &[]).unwrap_err().to_string();
    assert!(error.contains("[4, 3, 8]"), "{error}");
}

#[test]
fn rotation_and_its_gradient_are_those_of_complex_numbers() {
    let options = (Kind::Double, tested());
    let (x, above) = (Tensor::randn([5, 3, 8], options), Tensor::randn([5, 3, 8], options));
    let angles = Tensor::randn([5, 4], options);
    let (cos, sin) = (angles.cos(), angles.sin());
    let plain = |x: &Tensor| {
        let (a, b) = (x.narrow(-1, 0, 4), x.narrow(-1, 4, 4));
        let (c, s) = (cos.unsqueeze(1), sin.unsqueeze(1));
        Tensor::cat(&[&a * &c - &b * &s, b * c + a * s], -1)
    };
    let gradient = |f: &dyn Fn(&Tensor) -> Tensor| {
        let x = x.detach().set_requires_grad(true);
        let y = f(&x);
        (&y * &above).sum(Kind::Double).backward();
        (y.detach(), x.grad())
    };
    let wanted = gradient(&plain);
    let compute = || gradient(&|x| attention::rotate(x, &cos, &sin).unwrap());
    for got in [compute(), grpo_native::generic(compute)] {
        assert!(apart(&got.0, &wanted.0) < 1e-14 && apart(&got.1, &wanted.1) < 1e-14);
    }
    // Angles stay in fp32 with states in bf16.
    let [cos32, sin32] = [&cos, &sin].map(|x| x.to_kind(Kind::Float));
    let compute = || gradient(&|x| attention::rotate(&x.to_kind(Kind::BFloat16), &cos32, &sin32).unwrap());
    for got in [compute(), grpo_native::generic(compute)] {
        assert!(apart(&got.0, &wanted.0) < BF16 && apart(&got.1, &wanted.1) < BF16);
    }
    assert!(attention::rotate(&x.to_kind(Kind::BFloat16), &cos, &sin).is_err());
    assert!(attention::rotate(&x, &cos.narrow(0, 0, 4), &sin).is_err());
}

#[test]
fn a_fused_step_is_the_papers() {
    let options = (Kind::Double, tested());
    let step = |steps| AdamStep {
        steps,
        rate: 0.1,
        betas: [0.9, 0.95],
        weight_decay: 0.2,
        epsilon: 1e-8,
    };
    let (mut x, mut m, mut v) = (
        Tensor::randn([1000], options),
        Tensor::zeros([1000], options),
        Tensor::zeros([1000], options),
    );
    let (mut wx, mut wm, mut wv) = (x.copy(), m.copy(), v.copy());
    for steps in 1..=3 {
        let g = Tensor::randn([1000], options);
        wm = wm * 0.9 + &g * 0.1;
        wv = wv * 0.95 + g.square() * 0.05;
        let (m_hat, v_hat) = (&wm / (1.0 - 0.9f64.powi(steps)), &wv / (1.0 - 0.95f64.powi(steps)));
        wx = &wx * (1.0 - 0.1 * 0.2) - m_hat / (v_hat.sqrt() + 1e-8) * 0.1;
        adamw(&mut x, &g, [&mut m, &mut v], &step(steps as u64)).unwrap();
        assert!(apart(&x, &wx) < 1e-12 && apart(&m, &wm) < 1e-12 && apart(&v, &wv) < 1e-12);
    }
    let short = Tensor::zeros([3], options);
    assert!(
        adamw(&mut x, &short, [&mut m, &mut v], &step(4))
            .unwrap_err()
            .to_string()
            .contains("1000 values")
    );
}

#[test]
fn squares_are_summed_in_double_precision() {
    // In fp32 the first value would swallow the ones.
    let values = Tensor::cat(
        &[
            Tensor::from_slice(&[4096f32]),
            Tensor::ones([300_000], (Kind::Float, Device::Cpu)),
        ],
        0,
    );
    let sum = square_sum(&values.to_device(tested())).unwrap();
    assert_eq!(sum.size(), [1]);
    assert_eq!(sum.double_value(&[0]), 4096.0 * 4096.0 + 300_000.0);
}

#[test]
fn a_norm_and_a_gated_unit_and_their_gradients_are_those_of_single_operations() {
    tch::manual_seed(4);
    let normal = |size: &[i64]| rounded(&Tensor::randn(size, (Kind::Double, tested())));
    let gradients = |x: [&Tensor; 2], above: &Tensor, f: &dyn Fn(&Tensor, &Tensor) -> Tensor| {
        let [a, b] = x.map(|x| x.detach().set_requires_grad(true));
        let y = f(&a, &b);
        (&y * above).sum(y.kind()).backward();
        [y.detach(), a.grad(), b.grad()]
    };
    type Pair<'a> = [&'a dyn Fn(&Tensor, &Tensor) -> Tensor; 2];
    let norm: Pair<'_> = [
        &|x, w| x * (x.square().mean_dim(-1, true, x.kind()) + 1e-6).rsqrt() * w,
        &|x, w| fused::rms_norm(x, w, 1e-6).unwrap(),
    ];
    let gated: Pair<'_> = [&|g, u| g.silu() * u, &|g, u| fused::swiglu(g, u).unwrap()];
    // A GPU's kernels give a row of up to 128, 1,024 and 8,192 values to as many threads.
    for (n, h) in [(1, 1), (3, 37), (200, 64), (700, 128), (30, 1000), (5, 2048)] {
        let (x, w, u) = (normal(&[2, n, h]), normal(&[h]), normal(&[2, n, h]));
        let above = normal(&[2, n, h]);
        for ([plain, one], second) in [(norm, &w), (gated, &u)] {
            let wanted = gradients([&x, second], &above, plain);
            for (kind, bound) in [(Kind::Double, 1e-12), (Kind::Float, 1e-5), (Kind::BFloat16, BF16)] {
                let [x, second, above] = [&x, second, &above].map(|x| x.to_kind(kind));
                let compute = || gradients([&x, &second], &above, one);
                for got in [compute(), grpo_native::generic(compute)] {
                    for (got, wanted) in got.iter().zip(&wanted) {
                        // At width one the norm's gradient is nearly 0, and rounding is large in comparison.
                        let apart = (got.to_kind(Kind::Double) - wanted).norm().double_value(&[]);
                        let size = wanted.norm().double_value(&[]).max(1.0);
                        assert!(apart < bound * size, "{n} x {h} in {kind:?}: {apart:e} of {size}");
                    }
                }
            }
        }
    }
    assert!(
        fused::rms_norm(&normal(&[2, 3]), &normal(&[2]), 1e-6)
            .unwrap_err()
            .to_string()
            .contains("[2, 3]")
    );
    assert!(fused::swiglu(&normal(&[2, 3]), &normal(&[3, 2])).is_err());
}

#[test]
fn an_output_that_was_saved_is_taken_and_not_computed_again() {
    tch::manual_seed(11);
    let whole = [Piece {
        queries: 0..6,
        keys: 0..6,
        causal: true,
    }];
    let kind = if tested().is_cuda() {
        Kind::BFloat16
    } else {
        Kind::Float
    };
    let random = || Tensor::randn([6, 2, 16], (kind, tested()));
    let (x, y) = (random(), random());
    let mut saving = Saving::Next;
    let first = attention::tree_saving(&x, &x, &x, &whole, &mut saving).unwrap();
    assert!(matches!(saving, Saving::Saved(_)));
    let second = attention::tree_saving(&y, &y, &y, &whole, &mut saving).unwrap();
    assert!(second.equal(&first), "the output is that of the pass that was saved");
    assert!(!attention::tree(&y, &y, &y, &whole).unwrap().equal(&first));
}
