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
//! rows. On a GPU kernels of our own take its place ([`grpo_native::head`]): logprobs, entropies and, at the end, the
//! logits' gradients in bf16 each take one pass over the buffer.

use grpo_native::head::{Scored, has_kernels};
use tch::{Device, Kind, Tensor};

/// Elements of a block that passes over a buffer share: 1 MiB of fp32.
const BLOCK: i64 = 1 << 18;

/// Rows of a bf16 weight that are multiplied at a time: what is converted, or added to the gradient, is no larger.
const ROWS: i64 = 1 << 14;

/// One chunk's tokens over the whole vocabulary, and what their gradient needs.
pub enum Chunk {
    /// By kernels of a GPU.
    Scored(Scored),
    /// By libtorch's operations.
    LogProbs(LogProbs),
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
        if has_kernels(weight) {
            // Shapes that do not fit panic, as they do in every other operation on tensors.
            let scored =
                Scored::of(weight, hidden, targets, temperatures, buffer).unwrap_or_else(|error| panic!("{error}"));
            let (logprobs, entropies) = (scored.logprobs(), scored.entropies());
            return (Self::Scored(scored), logprobs, entropies);
        }
        let (chunk, logprobs, entropies) = LogProbs::forward(weight, hidden, targets, temperatures, buffer);
        (Self::LogProbs(chunk), logprobs, entropies)
    }

    /// Adds to `weight_gradient: [v, h]` (none: the weight is not trained) and answers the gradient of the hidden
    /// states, `[n, h]`, both in fp32 where they are in bf16, given those of the logprobs and of the entropies, `[n]`
    /// each (none: the loss does not look at entropies). Consumes the buffer's content.
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

/// Log probabilities of one chunk's tokens over the whole vocabulary.
pub struct LogProbs {
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

/// A buffer for chunks of `tokens` of weights `like` this.
pub fn buffer(tokens: i64, vocabulary: i64, like: &Tensor) -> Tensor {
    Tensor::empty([tokens * vocabulary], (sums(like.kind()), like.device()))
}

#[cfg(test)]
mod tests;
