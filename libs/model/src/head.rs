//! The vocabulary head in chunks: logprobs and entropies of chosen tokens, and their gradients, without ever holding
//! more than a chunk's logits.
//!
//! What flows through: normed hidden states `[n, h]`, the head's weight `[v, h]`. Softmax, selected logprob, entropy
//! and gradient are computed in place in one `[chunk, v]` buffer, in blocks of rows that stay in a core's cache. With z
//! the logits over the temperature, p = softmax(z), and g, e the gradients of a token's logprob and entropy H, the
//! gradient of z is g (onehot - p) - e p (log p + H). (Cut cross-entropy, arXiv 2411.09009, and Liger's fused heads are
//! the same idea.)
//!
//! Where hidden states and weight are in bf16, logits, all that follows from them and the weight's gradient are in
//! fp32: the products of two numbers of 8 bits are exact there. The weight is then passed over in parts of [`ROWS`]
//! rows.

use tch::{Device, Kind, Tensor};

/// Elements of a block that passes over a buffer share: 1 MiB of fp32.
const BLOCK: i64 = 1 << 18;

/// Rows of a bf16 weight that are multiplied at a time: what is converted, or added to the gradient, is no larger.
const ROWS: i64 = 1 << 14;

/// Log probabilities of one chunk's tokens over the whole vocabulary, and what their gradient needs.
pub struct Chunk {
    /// log p, `[n, v]`.
    logp: Tensor,
    /// Hidden states, `[n, h]`; over their temperatures where they are not in bf16.
    scaled: Tensor,
    temperatures: Tensor,
    targets: Tensor,
    entropies: Tensor,
}

/// Rows `[begin, begin + count)` that are passed over together.
fn blocks(n: i64, v: i64) -> impl Iterator<Item = (i64, i64)> {
    let rows = (BLOCK / v.max(1)).max(1);
    (0..n)
        .step_by(rows as usize)
        .map(move |begin| (begin, rows.min(n - begin)))
}

/// What is summed of values of this kind.
fn sums(kind: Kind) -> Kind {
    match kind {
        Kind::BFloat16 => Kind::Float,
        kind => kind,
    }
}

/// `a: [n, k]` by `b: [k, m]` in fp32. CUDA multiplies bf16 and sums in fp32; the CPU has no such product.
fn product(a: &Tensor, b: &Tensor) -> Tensor {
    let both = |kind: Kind| (a.to_kind(kind), b.to_kind(kind));
    if let Device::Cuda(_) = a.device() {
        let (a, b) = both(Kind::BFloat16);
        return a.mm_dtype(&b, Kind::Float);
    }
    let (a, b) = both(Kind::Float);
    a.mm(&b)
}

/// Parts of a weight's rows that are multiplied together.
fn parts(v: i64) -> impl Iterator<Item = (i64, i64)> {
    (0..v)
        .step_by(ROWS as usize)
        .map(move |begin| (begin, ROWS.min(v - begin)))
}

impl Chunk {
    /// `hidden: [n, h]`, `weight: [v, h]`, `targets: [n]` int64, `temperatures: [n]`. `buffer` (see [`buffer`]) holds
    /// at least `n * v` elements and is overwritten. Answers the chunk with the targets' logprobs `[n]` and the
    /// entropies `[n]` in nats. No graph is recorded.
    pub fn forward(
        weight: &Tensor,
        hidden: &Tensor,
        targets: &Tensor,
        temperatures: &Tensor,
        buffer: &Tensor,
    ) -> (Self, Tensor, Tensor) {
        tch::no_grad(|| {
            let (n, v, kind) = (hidden.size()[0], weight.size()[0], sums(hidden.kind()));
            let mut logp = buffer.narrow(0, 0, n * v).view([n, v]);
            let scaled = if hidden.kind() == Kind::BFloat16 {
                for (begin, count) in parts(v) {
                    let logits = product(hidden, &weight.narrow(0, begin, count).tr());
                    logp.narrow(1, begin, count).copy_(&logits);
                }
                let _ = logp.g_div_(&temperatures.unsqueeze(-1));
                hidden.shallow_clone()
            } else {
                let scaled = hidden / temperatures.unsqueeze(-1);
                let _ = scaled.mm_out(&logp, &weight.tr());
                scaled
            };
            let entropies = Tensor::zeros([n], (kind, hidden.device()));
            for (begin, count) in blocks(n, v) {
                let mut z = logp.narrow(0, begin, count);
                let _ = z.g_sub_(&z.amax(-1, true));
                let p = z.exp();
                let sum = p.sum_dim_intlist(-1, true, kind);
                let mean = (p * &z).sum_dim_intlist(-1, true, kind) / &sum;
                let log = sum.log();
                entropies.narrow(0, begin, count).copy_(&(&log - mean).squeeze_dim(-1));
                let _ = z.g_sub_(&log);
            }
            let logprobs = logp.gather(-1, &targets.unsqueeze(-1), false).squeeze_dim(-1);
            let chunk = Self {
                logp,
                scaled,
                temperatures: temperatures.shallow_clone(),
                targets: targets.shallow_clone(),
                entropies: entropies.shallow_clone(),
            };
            (chunk, logprobs, entropies)
        })
    }

    /// Adds to `weight_gradient: [v, h]` (none: the weight is not trained) and answers the gradient of the hidden
    /// states, `[n, h]`, both in fp32 where they are in bf16, given those of the logprobs and of the entropies, `[n]`
    /// each (none: the loss does not look at entropies). Consumes the buffer's content.
    pub fn backward(
        self,
        weight: &Tensor,
        logprobs: &Tensor,
        entropies: Option<&Tensor>,
        mut weight_gradient: Option<&mut Tensor>,
    ) -> Tensor {
        tch::no_grad(|| {
            let (n, v) = (self.logp.size()[0], self.logp.size()[1]);
            let g = logprobs.unsqueeze(-1);
            for (begin, count) in blocks(n, v) {
                let part = |x: &Tensor| x.narrow(0, begin, count);
                let mut z = part(&self.logp);
                let g = part(&g).neg();
                match entropies {
                    None => {
                        let _ = z.exp_().g_mul_(&g);
                    }
                    Some(e) => {
                        let e = part(e).unsqueeze(-1);
                        let factor = g - (&z + part(&self.entropies).unsqueeze(-1)) * e;
                        let _ = z.exp_().g_mul_(&factor);
                    }
                }
            }
            let mut logits = self.logp;
            let _ = logits.scatter_add_(-1, &self.targets.unsqueeze(-1), &g);
            if weight.kind() == Kind::BFloat16 {
                let _ = logits.g_div_(&self.temperatures.unsqueeze(-1));
                let mut above = Tensor::zeros([n, weight.size()[1]], (logits.kind(), logits.device()));
                for (begin, count) in parts(v) {
                    let logits = logits.narrow(1, begin, count);
                    if let Some(gradient) = &mut weight_gradient {
                        let mut gradient = gradient.narrow(0, begin, count);
                        let _ = gradient.g_add_(&product(&logits.tr(), &self.scaled));
                    }
                    let _ = above.g_add_(&product(&logits, &weight.narrow(0, begin, count)));
                }
                return above;
            }
            if let Some(gradient) = weight_gradient {
                let _ = gradient.addmm_(&logits.tr(), &self.scaled);
            }
            logits.mm(weight) / self.temperatures.unsqueeze(-1)
        })
    }
}

/// A buffer for chunks of `tokens` of weights `like` this.
pub fn buffer(tokens: i64, vocabulary: i64, like: &Tensor) -> Tensor {
    Tensor::empty([tokens * vocabulary], (sums(like.kind()), like.device()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers between -1.7 and 1.7 of variance 1, the same every time: libtorch's generator is shared with tests that
    /// run beside this one.
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
                    // Where a sum over the vocabulary cancels, the dense computation loses as many digits.
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
}
