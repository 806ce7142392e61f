//! Compares GPU-only operations with double precision: `make test-gpu`. Tests for every device cover the kernels of
//! norms, SwiGLU, rotation and short pieces of attention.

use grpo_native::attention::Piece;
use grpo_native::device;
use grpo_native::dropout::dropout;
use grpo_native::experts::{experts, have_kernels};
use grpo_native::head::{Scored, has_kernels};
use grpo_native::linear::backward;
use tch::{Device, Kind, Tensor};

use crate::attention::{Tree, apart, holds};
use crate::tested;

/// A prompt of `tokens` tokens followed by rows, each of which sees the prompt and itself.
fn prompt(tokens: usize, rows: &[usize]) -> Tree {
    let own = |begin: usize, count: usize| Piece {
        queries: begin..begin + count,
        keys: begin..begin + count,
        causal: true,
    };
    let mut pieces = vec![own(0, tokens)];
    let mut sees: Vec<Vec<usize>> = (0..tokens).map(|i| (0..=i).collect()).collect();
    for count in rows {
        let begin = sees.len();
        pieces.push(own(begin, *count));
        sees.extend((0..*count).map(|i| (0..tokens).chain(begin..=begin + i).collect()));
    }
    if tokens < sees.len() {
        pieces.push(Piece {
            queries: tokens..sees.len(),
            keys: 0..tokens,
            causal: false,
        });
    }
    Tree { pieces, sees }
}

/// Pieces long enough for cuDNN, alone and among others, with and without padding.
#[test]
#[ignore = "needs a GPU: make test-gpu"]
fn long_causal_pieces_are_those_of_a_dense_mask_whether_bits_repeat_or_not() {
    for deterministic in [true, false] {
        device::compute_deterministically(deterministic);
        let trees = [
            (4096, &[][..]),
            (4500, &[700, 90][..]),
            (300, &[4200, 80][..]),
            (4100, &[4200][..]),
            // All tokens are as many as a padded piece.
            (300, &[4500, 320][..]),
            (4500, &[400, 220][..]),
        ];
        for (tokens, rows) in trees {
            holds(&prompt(tokens, rows), 2, 2, 64, 7);
        }
    }
    device::compute_deterministically(true);
}

/// Rows that see a long prompt, whose last tokens cuDNN leaves to the flash kernel, or none of them; and a tree whose
/// branch is a prompt itself, so that queries have several parts.
#[test]
#[ignore = "needs a GPU: make test-gpu"]
fn long_pieces_that_see_a_prompt_are_those_of_a_dense_mask_whether_bits_repeat_or_not() {
    let piece = |queries: std::ops::Range<usize>, keys: std::ops::Range<usize>| Piece {
        causal: queries == keys,
        queries,
        keys,
    };
    let (prompt_end, branch_end, end) = (4200, 8400, 8700);
    let branches = Tree {
        pieces: vec![
            piece(0..prompt_end, 0..prompt_end),
            piece(prompt_end..branch_end, prompt_end..branch_end),
            piece(branch_end..end, branch_end..end),
            piece(prompt_end..end, 0..prompt_end),
            piece(branch_end..end, prompt_end..branch_end),
        ],
        sees: (0..end).map(|i| (0..=i).collect()).collect(),
    };
    for deterministic in [true, false] {
        device::compute_deterministically(deterministic);
        for (tokens, rows) in [(5000, &[2500, 1700][..]), (4096, &[4096][..]), (4100, &[4500, 3][..])] {
            holds(&prompt(tokens, rows), 2, 2, 64, 8);
        }
        holds(&branches, 2, 2, 64, 9);
    }
    device::compute_deterministically(true);
}

#[test]
#[ignore = "needs a GPU: make test-gpu"]
fn the_heads_kernels_are_a_dense_head_and_its_gradients() {
    tch::manual_seed(5);
    let device = tested();
    let rounded = |size: &[i64]| Tensor::randn(size, (Kind::Double, device)).to_kind(Kind::BFloat16);
    // One iteration of a block covers 2,048 logits.
    for (n, v, h) in [(3, 64, 8), (700, 5_000, 64), (40, 151_936, 128)] {
        let (x, w) = (rounded(&[n, h]), rounded(&[v, h]));
        let temperatures = Tensor::rand([n], (Kind::Double, device)) + 0.5;
        let targets = Tensor::randint(v, [n], (Kind::Int64, device));
        let [g, e] = [(); 2].map(|()| Tensor::randn([n], (Kind::Double, device)));
        let [exact_x, exact_w] = [&x, &w].map(|x| x.to_kind(Kind::Double).set_requires_grad(true));
        let all = (exact_x.matmul(&exact_w.tr()) / temperatures.unsqueeze(-1)).log_softmax(-1, Kind::Double);
        let logprobs = all.gather(-1, &targets.unsqueeze(-1), false).squeeze_dim(-1);
        let entropies = -(all.exp() * &all).sum_dim_intlist(-1, false, Kind::Double);
        ((&logprobs * &g).sum(Kind::Double) + (&entropies * &e).sum(Kind::Double)).backward();

        assert!(has_kernels(&w));
        let single = |x: &Tensor| x.to_kind(Kind::Float);
        let buffer = Tensor::empty([(n + 1) * v], (Kind::Float, device));
        let scored = Scored::of(&w, &x, &targets, &single(&temperatures), &buffer).unwrap();
        let (got_logprobs, got_entropies) = (scored.logprobs().copy(), scored.entropies().copy());
        let mut dw = Tensor::ones([v, h], (Kind::Float, device));
        let dx = scored
            .gradients(&w, &single(&g), Some(&single(&e)), Some(&mut dw))
            .unwrap();
        // The logits' gradients are rounded to bf16 before they are multiplied.
        for (what, got, wanted, bound) in [
            ("logprobs", &got_logprobs, &logprobs, 1e-5),
            ("entropies", &got_entropies, &entropies, 1e-5),
            ("dx", &dx, &exact_x.grad(), 1e-2),
            ("dw", &(dw - 1.0), &exact_w.grad(), 1e-2),
        ] {
            let apart = apart(got, wanted);
            assert!(apart < bound, "{what} of {n} tokens of {v}: {apart:e} apart");
        }
    }
}

/// The largest chunk of the trainer, nearly 2^30 logits. Its products sum in another order: over a vocabulary of
/// 152,000 such sums in fp32 differ by 1e-4.
#[test]
#[ignore = "needs a GPU: make test-gpu"]
fn a_heads_largest_chunk_is_its_smaller_chunks() {
    tch::manual_seed(8);
    let device = tested();
    let (n, v, h, most) = (7_064i64, 151_936, 128, 1_766);
    let random = |size: &[i64]| Tensor::randn(size, (Kind::Float, device)).to_kind(Kind::BFloat16);
    let (x, w) = (random(&[n, h]), random(&[v, h]) * 0.1);
    let temperatures = Tensor::ones([n], (Kind::Float, device));
    let targets = Tensor::randint(v, [n], (Kind::Int64, device));
    let above = Tensor::randn([n], (Kind::Float, device));
    let in_pieces = |most: i64| {
        let buffer = Tensor::empty([most * v], (Kind::Float, device));
        let mut dw = Tensor::zeros([v, h], (Kind::Float, device));
        let pieces = (0..n).step_by(most as usize).map(|begin| {
            let part = |tensor: &Tensor| tensor.narrow(0, begin, most);
            let scored = Scored::of(&w, &part(&x), &part(&targets), &part(&temperatures), &buffer).unwrap();
            let logprobs = scored.logprobs().copy();
            let dx = scored.gradients(&w, &part(&above), None, Some(&mut dw)).unwrap();
            (logprobs, dx)
        });
        let (logprobs, dx): (Vec<Tensor>, Vec<Tensor>) = pieces.unzip();
        [Tensor::cat(&logprobs, 0), Tensor::cat(&dx, 0), dw]
    };
    let (whole, some) = (in_pieces(n), in_pieces(most));
    let bounds = [("logprobs", 1e-5), ("dx", 1e-3), ("dw", 1e-3)];
    for ((what, bound), (whole, some)) in bounds.iter().zip(whole.iter().zip(&some)) {
        let apart = apart(whole, some);
        assert!(apart < *bound, "{what}: {apart:e} apart");
    }
}

#[test]
#[ignore = "needs a GPU: make test-gpu"]
fn copies_beside_the_computation_see_what_was_computed_before_them() {
    let Device::Cuda(index) = tested() else {
        panic!("GRPO_TEST_DEVICE names no GPU")
    };
    let mut x = Tensor::zeros([1 << 26], (Kind::Float, tested()));
    let mut kept = Vec::new();
    for round in 1..=8 {
        // A queue of work in front of each copy.
        for _ in 0..20 {
            let _ = x.g_add_scalar_(1.0);
        }
        // Its own memory is given back at once.
        kept.push((20.0 * f64::from(round), device::host_copy(&(&x * 1.0)).unwrap()));
    }
    for (wanted, host) in kept {
        let coming = device::start_gpu_copy(&host, index).unwrap();
        drop(host);
        device::wait_for_copies(index).unwrap();
        let found = coming.eq(wanted).all().int64_value(&[]);
        assert_eq!(found, 1, "a copy of {wanted}");
    }
    let sent = device::sent(&Tensor::from_slice(&[1.0f32, 2.0]), tested()).unwrap();
    assert_eq!(Vec::<f32>::try_from(sent).unwrap(), [1.0, 2.0]);
}

/// Experts without tokens first, in the middle and last; weights with and without equal spacing in memory.
#[test]
#[ignore = "needs a GPU: make test-gpu"]
fn experts_together_are_each_of_them_alone() {
    tch::manual_seed(6);
    let device = tested();
    let (h, width, counts) = (64, 96, [0, 37, 300, 0, 1, 0]);
    let normal = |size: &[i64]| Tensor::randn(size, (Kind::Float, device)).to_kind(Kind::BFloat16);
    let tokens: i64 = counts.iter().sum();
    let (x, above) = (normal(&[tokens, h]), normal(&[tokens, h]));
    let shapes = [[width, h], [width, h], [h, width]];
    let flat = normal(&[3 * width * h * counts.len() as i64]) * 0.1;
    let views: Vec<Tensor> = (0..3 * counts.len())
        .map(|at| flat.narrow(0, at as i64 * width * h, width * h).view(shapes[at % 3]))
        .collect();
    let apart_weights: Vec<Tensor> = views.iter().map(Tensor::copy).collect();
    let ends: Vec<i32> = counts
        .iter()
        .scan(0, |end, count| {
            *end += *count as i32;
            Some(*end)
        })
        .collect();
    let ends = Tensor::from_slice(&ends).to_device(device);

    let leaf = |tensor: &Tensor, kind: Kind| tensor.detach().to_kind(kind).set_requires_grad(true);
    let exact: Vec<Tensor> = views.iter().map(|weight| leaf(weight, Kind::Double)).collect();
    let exact_x = leaf(&x, Kind::Double);
    let mut begin = 0;
    let mut parts = Vec::new();
    for (expert, count) in counts.into_iter().enumerate() {
        let [gate, up, down] = [0, 1, 2].map(|matrix| &exact[3 * expert + matrix]);
        let own = exact_x.narrow(0, begin, count);
        parts.push((own.matmul(&gate.tr()).silu() * own.matmul(&up.tr())).matmul(&down.tr()));
        begin += count;
    }
    let wanted = Tensor::cat(&parts, 0);
    (&wanted * above.to_kind(Kind::Double)).sum(Kind::Double).backward();

    for weights in [views, apart_weights] {
        let weights: Vec<Tensor> = weights
            .iter()
            .map(|weight| weight.detach().set_requires_grad(true))
            .collect();
        let x = leaf(&x, Kind::BFloat16);
        assert!(have_kernels(&x, &weights));
        let got = experts(&x, &ends, &weights).unwrap();
        backward(&got, &above).unwrap();
        let near = |what: &str, got: &Tensor, wanted: &Tensor| {
            let apart = apart(got, wanted);
            assert!(apart < 2e-2, "{what}: {apart:e} apart");
        };
        near("output", &got, &wanted);
        near("dx", &x.grad(), &exact_x.grad());
        for (at, (got, wanted)) in weights.iter().zip(&exact).enumerate() {
            near(
                &format!("matrix {} of expert {}", at % 3, at / 3),
                &got.grad(),
                &wanted.grad(),
            );
        }
    }
}

#[test]
#[ignore = "needs a GPU: make test-gpu"]
fn a_gpu_drops_what_the_cpu_drops() {
    let (x, keys) = (
        Tensor::randn([300, 64], (Kind::Float, Device::Cpu)).to_kind(Kind::BFloat16),
        Tensor::randint(i64::MAX, [300], (Kind::Int64, Device::Cpu)),
    );
    let on = |device: Device| {
        let x = x.to_device(device).set_requires_grad(true);
        let y = dropout(&x, &keys.to_device(device), 0xdead_beef_dead_beef, 0.3).unwrap();
        y.sum(Kind::Float).backward();
        [y.detach(), x.grad()].map(|tensor| tensor.to_device(Device::Cpu))
    };
    assert_eq!(on(tested()), on(Device::Cpu));
}

#[test]
#[ignore = "needs a GPU: make test-gpu"]
fn a_gpu_says_how_much_memory_it_has_left() {
    let Device::Cuda(index) = tested() else {
        panic!("GRPO_TEST_DEVICE names no GPU")
    };
    let before = device::gpu_free(index).unwrap();
    let held = Tensor::zeros([1 << 28], (Kind::Float, tested()));
    let after = device::gpu_free(index).unwrap();
    assert!(
        before - after >= 1 << 30,
        "{before} bytes before a tensor of 1 GiB, {after} after"
    );
    drop(held);
    assert!(
        device::gpu_free(index).unwrap() > after,
        "what libtorch keeps counts as free"
    );
}
