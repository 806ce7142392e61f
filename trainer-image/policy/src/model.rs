//! The model, top to bottom, as functions of the weights they are given: the trainer gathers a unit, calls one of these, and frees it again.
//!
//! Qwen3 (dense): embedding, then blocks of { RMSNorm, attention with grouped keys and values, per-head RMSNorm on queries and keys before the rotary
//! embedding, no biases; RMSNorm, SwiGLU }, then RMSNorm and the vocabulary head. Shapes: `b` rows, `t` tokens, `h` hidden. Which position a
//! token has and what it sees is the [`Layout`]'s: padded rows or a packed tree.

use grpo_native::fused;
use tch::{Kind, Tensor};

use crate::config::Config;
use crate::layout::Layout;

/// Cosines and sines of the rotary embedding, `[positions, head_dim]` each.
pub struct Rope {
    cos: Tensor,
    sin: Tensor,
}

impl Rope {
    pub fn new(config: &Config, positions: i64, kind: Kind) -> Self {
        let d = config.head_dim() as i64;
        let device = tch::Device::Cpu;
        let exponents = Tensor::arange_start_step(0, d, 2, (Kind::Double, device)) / d as f64;
        let frequencies = (exponents * -config.rope_theta.ln()).exp();
        let angles = Tensor::arange(positions, (Kind::Double, device)).unsqueeze(1) * frequencies.unsqueeze(0);
        let angles = Tensor::cat(&[&angles, &angles], 1);
        Self {
            cos: angles.cos().to_kind(kind),
            sin: angles.sin().to_kind(kind),
        }
    }

    /// Cosines and sines `[n, d / 2]` at `positions: [n]` int64. Dimension i is paired with i + d/2, and both have one angle.
    pub fn at(&self, positions: &Tensor) -> (Tensor, Tensor) {
        let half = self.cos.size()[1] / 2;
        let at = |table: &Tensor| table.narrow(1, 0, half).index_select(0, positions);
        (at(&self.cos), at(&self.sin))
    }
}

fn rms_norm(x: &Tensor, weight: &Tensor, epsilon: f64) -> Tensor {
    // Shapes that do not fit panic, as they do in every other operation on tensors.
    fused::rms_norm(x, weight, epsilon).unwrap_or_else(|error| panic!("{error}"))
}

/// silu(gate) * up.
fn swiglu(gate: &Tensor, up: &Tensor) -> Tensor {
    fused::swiglu(gate, up).unwrap_or_else(|error| panic!("{error}"))
}

/// Weights of one block, in the order of [`crate::weights::units`].
pub struct Block<'a>(pub &'a [Tensor]);

/// `ids: [b, t]` int64 to `[b, t, h]`.
pub fn embed(embedding: &Tensor, ids: &Tensor) -> Tensor {
    Tensor::embedding(embedding, ids, -1, false, false)
}

/// One transformer block: `[b, t, h]` to `[b, t, h]`, of tokens that stand as `layout` says.
pub fn block(config: &Config, rope: &Rope, layout: &Layout, weights: &Block<'_>, x: &Tensor) -> Tensor {
    let [n1, q, k, v, o, qn, kn, n2, gate, up, down] = weights.0 else {
        unreachable!("a block has eleven tensors, see weights::units")
    };
    let size = x.size();
    let (b, t) = (size[0], size[1]);
    let (heads, kv, d) = (
        config.num_attention_heads as i64,
        config.num_key_value_heads as i64,
        config.head_dim() as i64,
    );

    let normed = rms_norm(x, n1, config.rms_norm_eps);
    let split = |weight: &Tensor, heads: i64| normed.matmul(&weight.tr()).view([b, t, heads, d]);
    let queries = layout.rotate(rope, &rms_norm(&split(q, heads), qn, config.rms_norm_eps));
    let keys = layout.rotate(rope, &rms_norm(&split(k, kv), kn, config.rms_norm_eps));
    let mixed = layout.attend(&queries, &keys, &split(v, kv));
    let x = x + mixed.matmul(&o.tr());

    let normed = rms_norm(&x, n2, config.rms_norm_eps);
    &x + swiglu(&normed.matmul(&gate.tr()), &normed.matmul(&up.tr())).matmul(&down.tr())
}

/// The norm before the vocabulary head, over the last dimension.
pub fn final_norm(config: &Config, weight: &Tensor, x: &Tensor) -> Tensor {
    rms_norm(x, weight, config.rms_norm_eps)
}

/// Logits `[n, vocabulary]` of chosen hidden states `[n, h]`. `ends` are the tensors of the embedding unit.
pub fn head(config: &Config, ends: &[Tensor], x: &Tensor) -> Tensor {
    let weight = if config.tie_word_embeddings { &ends[0] } else { &ends[2] };
    rms_norm(x, &ends[1], config.rms_norm_eps).matmul(&weight.tr())
}

/// Logprobs `[n]` of `targets: [n]` under softmax(logits / temperature), and the distributions' entropies `[n]` in nats (no gradient).
pub fn logprobs(logits: &Tensor, targets: &Tensor, temperature: &Tensor) -> (Tensor, Tensor) {
    let all = (logits / temperature.unsqueeze(-1)).log_softmax(-1, logits.kind());
    let entropy = tch::no_grad(|| {
        (all.detach().exp() * all.detach())
            .sum_dim_intlist(Some(&[-1i64][..]), false, all.kind())
            .neg()
    });
    (all.gather(-1, &targets.unsqueeze(-1), false).squeeze_dim(-1), entropy)
}
