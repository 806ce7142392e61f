use super::*;

/// Reproducible numbers between -1.7 and 1.7 with variance 1: libtorch's generator is shared with concurrent tests.
struct Drawn(u64);

impl Drawn {
    fn one(&mut self) -> f64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn tensor(&mut self, size: &[i64]) -> Tensor {
        let values: Vec<f64> = (0..size.iter().product::<i64>())
            .map(|_| (self.one() - 0.5) * 12f64.sqrt())
            .collect();
        Tensor::from_slice(&values).view(size)
    }

    fn ids(&mut self, below: i64, n: i64) -> Tensor {
        let ids: Vec<i64> = (0..n).map(|_| (self.one() * below as f64) as i64).collect();
        Tensor::from_slice(&ids)
    }
}

fn apart(a: &Tensor, b: &Tensor) -> f64 {
    (a - b).norm().double_value(&[]) / b.norm().double_value(&[])
}

/// Loss, logprobs, entropies and gradients by autograd over dense logits.
fn dense(x: &Tensor, w: &Tensor, targets: &Tensor, t: &Tensor, g: &Tensor, e: Option<&Tensor>) -> [Tensor; 4] {
    let (x, w) = (x.copy().set_requires_grad(true), w.copy().set_requires_grad(true));
    let all = (x.matmul(&w.tr()) / t.unsqueeze(-1)).log_softmax(-1, x.kind());
    let logprobs = all.gather(-1, &targets.unsqueeze(-1), false).squeeze_dim(-1);
    let entropies = (all.exp() * &all).sum_dim_intlist(-1, false, x.kind()).neg();
    let mut loss = (&logprobs * g).sum(x.kind());
    if let Some(e) = e {
        loss += (&entropies * e).sum(x.kind());
    }
    loss.backward();
    [logprobs.detach(), entropies.detach(), x.grad(), w.grad()]
}

#[test]
fn a_chunk_is_the_dense_head_and_its_gradient_in_either_precision() {
    let mut drawn = Drawn(1);
    // The second vocabulary is larger than a block.
    for (n, v, h) in [(7, 33, 5), (3, BLOCK + 3, 2), (700, 1000, 8)] {
        let (x, w, t) = (
            drawn.tensor(&[n, h]),
            drawn.tensor(&[v, h]),
            drawn.tensor(&[n]).exp() + 0.3,
        );
        let targets = drawn.ids(v, n);
        let (g, e) = (drawn.tensor(&[n]), drawn.tensor(&[n]));
        for (kind, bound) in [(Kind::Double, 1e-11_f64), (Kind::Float, 2e-5)] {
            for e in [None, Some(&e)] {
                let wanted = dense(&x, &w, &targets, &t, &g, e);
                let [x, w, t, g] = [&x, &w, &t, &g].map(|tensor| tensor.to_kind(kind));
                let e = e.map(|e| e.to_kind(kind));
                // If a sum over the vocabulary cancels, the dense computation loses as many digits.
                let as_dense = dense(&x, &w, &targets, &t, &g, e.as_ref());
                let mut dw = w.zeros_like();
                let buffer = buffer(n + 1, v, &x);
                let (chunk, logprobs, entropies) = Chunk::forward(&w, &x, &targets, &t, &buffer);
                let dx = chunk.backward(&w, &g, e.as_ref(), Some(&mut dw));
                let (again, ..) = Chunk::forward(&w, &x, &targets, &t, &buffer);
                let beside_frozen = again.backward(&w, &g, e.as_ref(), None);
                assert_eq!(beside_frozen, dx, "of a weight that is not trained");
                let names = ["logprobs", "entropies", "dx", "dw"];
                for (at, got) in [logprobs, entropies, dx, dw].iter().enumerate() {
                    let off = |found: &Tensor| apart(&found.to_kind(Kind::Double), &wanted[at]);
                    let (apart, dense) = (off(got), off(&as_dense[at]));
                    let name = names[at];
                    assert!(
                        apart < bound.max(4.0 * dense),
                        "{name} of {n} tokens of {v} in {kind:?}: {apart:e} apart, dense {dense:e}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_chunk_of_bf16_is_the_dense_head_of_its_values_in_fp32() {
    let mut drawn = Drawn(2);
    // The second vocabulary is larger than a part.
    for (n, v, h) in [(7, 33, 5), (5, ROWS + 3, 16)] {
        let mut rounded = |size: &[i64]| drawn.tensor(size).to_kind(Kind::BFloat16);
        let (x, w, t) = (rounded(&[n, h]), rounded(&[v, h]), rounded(&[n]).exp() + 0.3);
        let (g, e) = (drawn.tensor(&[n]), drawn.tensor(&[n]));
        let targets = drawn.ids(v, n);
        let [exact_x, exact_w, exact_t] = [&x, &w, &t].map(|tensor| tensor.to_kind(Kind::Double));
        let wanted = dense(&exact_x, &exact_w, &targets, &exact_t, &g, Some(&e));
        let [t, g, e] = [&exact_t, &g, &e].map(|tensor| tensor.to_kind(Kind::Float));
        let mut dw = Tensor::zeros([v, h], (Kind::Float, Device::Cpu));
        let (chunk, logprobs, entropies) = Chunk::forward(&w, &x, &targets, &t, &buffer(n, v, &x));
        let dx = chunk.backward(&w, &g, Some(&e), Some(&mut dw));
        for (got, wanted) in [logprobs, entropies, dx, dw].iter().zip(&wanted) {
            assert_eq!(got.kind(), Kind::Float);
            let apart = apart(&got.to_kind(Kind::Double), wanted);
            assert!(apart < 2e-5, "{n} tokens of {v}: {apart:e} apart");
        }
    }
}

#[test]
fn logits_that_would_overflow_do_not() {
    let x = Tensor::from_slice(&[1e4f32, -1e4]).view([2, 1]);
    let w = Tensor::from_slice(&[1.0f32, 0.5, -1.0]).view([3, 1]);
    let targets = Tensor::from_slice(&[0i64, 0]);
    let t = Tensor::ones([2], (Kind::Float, tch::Device::Cpu));
    let (chunk, logprobs, entropies) = Chunk::forward(&w, &x, &targets, &t, &buffer(2, 3, &x));
    assert_eq!(Vec::<f32>::try_from(&logprobs).unwrap(), [0.0, -2e4]);
    assert_eq!(Vec::<f32>::try_from(&entropies).unwrap(), [0.0, 0.0]);
    let mut dw = w.zeros_like();
    let dx = chunk.backward(&w, &t, None, Some(&mut dw));
    assert_eq!(Vec::<f32>::try_from(dx.reshape([-1])).unwrap(), [0.0, 2.0]);
}
