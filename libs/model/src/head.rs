//! The vocabulary head in chunks: logprobs and entropies of chosen tokens, and their gradients, with the logits of only
//! one chunk in memory.
//!
//! Inputs: normed hidden states `[n, h]`, the head's weight `[v, h]`. Softmax, selected logprob, entropy and gradient
//! are computed in place in one `[chunk, v]` buffer, in blocks of rows that fit in a core's cache. Let z be the logits
//! divided by temperature, p = softmax(z), and g, e the gradients of a token's logprob and entropy H. Then the gradient
//! of z is g (onehot - p) - e p (log p + H). (Cut cross-entropy, arXiv 2411.09009, and Liger's fused heads use the same
//! idea.)
//!
//! For hidden states and weight in bf16, logits, everything derived from them and the weight's gradient are in fp32:
//! products of two 8-bit significands are exact there. The weight is then processed in parts of [`ROWS`] rows. On a
//! GPU, this project's own kernels replace this ([`grpo_native::head`]): logprobs, entropies and, at the end, the
//! logits' gradients in bf16 each take one pass over the buffer.

use grpo_native::head::{Scored, has_kernels};
use tch::{Device, Kind, Tensor};

/// Elements of a block that several passes over a buffer share: 1 MiB of fp32.
const BLOCK: i64 = 1 << 18;

/// Rows of a bf16 weight that are multiplied at a time: this bounds the converted part and the part added to the
/// gradient.
const ROWS: i64 = 1 << 14;

/// One chunk's tokens over the whole vocabulary, with the state for their gradient.
pub enum Chunk {
    /// Computed by GPU kernels.
    Scored(Scored),
    /// Computed by libtorch's operations.
    LogProbs(LogProbs),
}

impl Chunk {
    /// `hidden: [n, h]`, `weight: [v, h]`, `targets: [n]` int64, `temperatures: [n]`. `buffer` (see [`buffer`]) holds
    /// at least `n * v` elements and is overwritten. Returns the chunk with the targets' logprobs `[n]` and the
    /// entropies `[n]` in nats. No graph is recorded.
    pub fn forward(
        weight: &Tensor,
        hidden: &Tensor,
        targets: &Tensor,
        temperatures: &Tensor,
        buffer: &Tensor,
    ) -> (Self, Tensor, Tensor) {
        if has_kernels(weight) {
            // Wrong shapes panic, as in every other tensor operation.
            let scored =
                Scored::of(weight, hidden, targets, temperatures, buffer).unwrap_or_else(|error| panic!("{error}"));
            let (logprobs, entropies) = (scored.logprobs(), scored.entropies());
            return (Self::Scored(scored), logprobs, entropies);
        }
        let (chunk, logprobs, entropies) = LogProbs::forward(weight, hidden, targets, temperatures, buffer);
        (Self::LogProbs(chunk), logprobs, entropies)
    }

    /// Given the gradients of the logprobs and of the entropies, `[n]` each (`None`: the loss does not use entropies),
    /// adds to `weight_gradient: [v, h]` (`None`: the weight is not trained) and returns the gradient of the hidden
    /// states, `[n, h]`; the two results are in fp32 if the inputs are in bf16. Consumes the buffer's content.
    pub fn backward(
        self,
        weight: &Tensor,
        logprobs: &Tensor,
        entropies: Option<&Tensor>,
        weight_gradient: Option<&mut Tensor>,
    ) -> Tensor {
        match self {
            Self::Scored(scored) => scored
                .gradients(weight, logprobs, entropies, weight_gradient)
                .unwrap_or_else(|error| panic!("{error}")),
            Self::LogProbs(chunk) => chunk.backward(weight, logprobs, entropies, weight_gradient),
        }
    }
}

/// Logprobs of one chunk's tokens over the whole vocabulary.
pub struct LogProbs {
    /// log p, `[n, v]`.
    logp: Tensor,
    /// Hidden states, `[n, h]`; divided by temperature unless they are in bf16.
    scaled: Tensor,
    temperatures: Tensor,
    targets: Tensor,
    entropies: Tensor,
}

/// Rows `[begin, begin + count)` that are processed together.
fn blocks(n: i64, v: i64) -> impl Iterator<Item = (i64, i64)> {
    let rows = (BLOCK / v.max(1)).max(1);
    (0..n)
        .step_by(rows as usize)
        .map(move |begin| (begin, rows.min(n - begin)))
}

/// The type in which values of this type are summed.
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

impl LogProbs {
    /// See [`Chunk::forward`].
    fn forward(
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

    /// See [`Chunk::backward`].
    fn backward(
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

/// A buffer for chunks of `tokens` tokens, for weights of the type and device of `like`.
pub fn buffer(tokens: i64, vocabulary: i64, like: &Tensor) -> Tensor {
    Tensor::empty([tokens * vocabulary], (sums(like.kind()), like.device()))
}

#[cfg(test)]
mod tests;
