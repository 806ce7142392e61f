//! The model as functions of the weights that they receive: the trainer gathers a unit, calls one of these functions,
//! and frees the unit.
//!
//! One decoder for three families: embedding; then blocks of { RMSNorm, attention with grouped keys and values and
//! rotary positions; RMSNorm, SwiGLU }; then RMSNorm and the vocabulary head. Qwen2.5 adds biases to queries, keys and
//! values; Qwen3 instead norms each head of queries and keys before rotation; Qwen3's mixture has experts in place of
//! the one SwiGLU. Any linear layer may have an adapter ([`crate::lora`]).
//!
//! Shapes: `b` rows, `t` tokens, `h` hidden size, `d` head size. The [`Layout`] gives each token's position and the
//! tokens that it attends to, for padded rows or a packed tree. Checked against transformers by `tests/reference.rs`.

use grpo_native::attention::Saving;
use grpo_native::dropout::dropout;
use grpo_native::gpu_wait::wait_for;
use grpo_native::routing::Routing;
use grpo_native::{experts, fused, linear};
use tch::{Device, Kind, Tensor};

use crate::config::{Config, Experts};
use crate::layout::Layout;
use crate::lora::Linear;
use crate::rotation::Rope;

/// `ids: [b, t]` int64 to `[b, t, h]`.
pub fn embed(embedding: &Tensor, ids: &Tensor) -> Tensor {
    Tensor::embedding(embedding, ids, -1, false, false)
}

/// One block.
#[derive(Clone, Copy)]
pub struct Block<'a> {
    /// Counted from 0.
    pub layer: usize,
    /// In the order of [`crate::weights::units`]; after them, if the config has adapters, those of the layer in the
    /// order of [`crate::adapter::units`].
    pub weights: &'a [Tensor],
}

/// State that one pass through a block saves for its recomputation.
#[derive(Default)]
pub struct Pass {
    /// The experts of each token, `[b, t, experts per token]` int64. Given experts are used; if there are none, or for
    /// a token with -1, the router chooses; the result is stored here. So a block is recomputed with the same experts,
    /// and a trainer repeats the experts that an engine recorded (router replay, arXiv 2510.11370). A block without
    /// experts does not change it. A nonexistent expert causes libtorch's error.
    pub experts: Option<Tensor>,
    pub attention: Saving,
}

/// One transformer block: `[b, t, h]` to `[b, t, h]`, for tokens at the positions of `layout`.
pub fn block(config: &Config, rope: &Rope, layout: &Layout, block: Block<'_>, x: &Tensor, pass: &mut Pass) -> Tensor {
    let layer = Layer::new(config, layout, block);
    let normed = rms_norm(x, layer.input_norm, config.rms_norm_eps);
    let x = x + attention(config, rope, layout, &layer, &normed, &mut pass.attention);
    let normed = rms_norm(&x, layer.mlp_norm, config.rms_norm_eps);
    let mixed = match &layer.mlp {
        Mlp::Dense { gate, up, down } => down.apply_gated(&gate.apply(&normed), &up.apply(&normed)),
        Mlp::Mixture {
            experts: geometry,
            router,
            weights,
        } => mixture(geometry, router, weights, &normed, &mut pass.experts),
    };
    x + mixed
}

fn attention(
    config: &Config,
    rope: &Rope,
    layout: &Layout,
    layer: &Layer<'_>,
    x: &Tensor,
    saving: &mut Saving,
) -> Tensor {
    let size = x.size();
    let (b, t, d) = (size[0], size[1], config.head_dim() as i64);
    let split = |linear: &LinearLayer<'_>| linear.apply(x).view([b, t, -1, d]);
    let normed = |heads: Tensor, weight: Option<&Tensor>| match weight {
        Some(weight) => rms_norm(&heads, weight, config.rms_norm_eps),
        None => heads,
    };
    let queries = layout.rotate(rope, &normed(split(&layer.query), layer.query_norm));
    let keys = layout.rotate(rope, &normed(split(&layer.key), layer.key_norm));
    let mixed = layout.attend(&queries, &keys, &split(&layer.value), saving);
    layer.output.apply(&mixed)
}

/// RMSNorm (Zhang and Sennrich, arXiv 1910.07467) over the last dimension.
fn rms_norm(x: &Tensor, weight: &Tensor, epsilon: f64) -> Tensor {
    // Wrong shapes panic, as in every other tensor operation.
    fused::rms_norm(x, weight, epsilon).unwrap_or_else(|error| panic!("{error}"))
}

/// silu(gate) * up.
fn swiglu(gate: &Tensor, up: &Tensor) -> Tensor {
    fused::swiglu(gate, up).unwrap_or_else(|error| panic!("{error}"))
}

/// The experts of each token of `x: [b, t, h]`, weighted by the router's softmax over all of them.
///
/// The bits are the same every time, also in the backward pass: see [`Routing`].
fn mixture(
    geometry: &Experts,
    router: &Tensor,
    weights: &[Tensor],
    x: &Tensor,
    experts: &mut Option<Tensor>,
) -> Tensor {
    let size = x.size();
    let (n, k, h) = (size[0] * size[1], geometry.per_token as i64, size[2]);
    let x = x.reshape([n, h]);
    // At least 32 bits, even if the weights have fewer.
    let kind = if x.kind() == Kind::Double {
        Kind::Double
    } else {
        Kind::Float
    };
    let probabilities = x.matmul(&router.tr()).softmax(-1, kind);
    let own = probabilities.detach().topk(k, -1, true, true).1;
    let chosen = match experts.take() {
        Some(given) => {
            let given = given.reshape([n, k]);
            own.where_self(&given.lt(0), &given)
        }
        None => own,
    };
    *experts = Some(chosen.view([size[0], size[1], k]));
    let mut shares = probabilities.gather(-1, &chosen, false);
    if geometry.normalised {
        shares = &shares / shares.sum_dim_intlist(Some(&[-1i64][..]), true, kind);
    }

    // Wrong shapes panic here too.
    let routing = Routing::of(&chosen, geometry.count).unwrap_or_else(|error| panic!("{error}"));
    let permuted = routing.dispatch(&x).unwrap_or_else(|error| panic!("{error}"));
    let parts = match experts::have_kernels(&permuted, weights) {
        true => experts::experts(&permuted, &routing.ends, weights).unwrap_or_else(|error| panic!("{error}")),
        false => one_by_one(&permuted, &loads(geometry, &chosen), weights),
    };
    let combined = routing.combine(&parts, &shares);
    combined.unwrap_or_else(|error| panic!("{error}")).view(size.as_slice())
}

/// The experts applied to `tokens: [n, h]`; each takes the next `counts[i]` tokens.
fn one_by_one(tokens: &Tensor, counts: &[i64], weights: &[Tensor]) -> Tensor {
    let mut begin = 0;
    let mut parts = Vec::with_capacity(counts.len());
    for (expert, count) in counts.iter().copied().enumerate() {
        if count > 0 {
            let [gate, up, down] = [0, 1, 2].map(|matrix| &weights[3 * expert + matrix]);
            let tokens = tokens.narrow(0, begin, count);
            let gated = tokens.matmul(&gate.tr()).silu() * tokens.matmul(&up.tr());
            parts.push(gated.matmul(&down.tr()));
            begin += count;
        }
    }
    Tensor::cat(&parts, 0)
}

/// The number of tokens that each expert computes, from experts as [`block`] stores them.
pub fn loads(geometry: &Experts, experts: &Tensor) -> Vec<i64> {
    let counts = counts(geometry, experts);
    wait_for(counts.device(), || {
        let counts = counts.to_device(Device::Cpu);
        (0..geometry.count as i64)
            .map(|expert| counts.int64_value(&[expert]))
            .collect()
    })
}

/// The same as a tensor, `[experts]` int64, without waiting for the device.
pub fn counts(geometry: &Experts, experts: &Tensor) -> Tensor {
    let experts = experts.reshape([-1]);
    let counts = Tensor::zeros([geometry.count as i64], (Kind::Int64, experts.device()));
    counts.scatter_add(0, &experts, &experts.ones_like())
}

/// A linear layer: `[.., inputs]` to `[.., outputs]`.
struct LinearLayer<'a> {
    weight: &'a Tensor,
    bias: Option<&'a Tensor>,
    adapter: Option<Adapter<'a>>,
}

/// The adapter of one linear layer.
struct Adapter<'a> {
    matrices: linear::LowRank<'a>,
    /// Keys of the tokens, salt, and dropout rate.
    drops: Option<(&'a Tensor, u64, f64)>,
}

impl LinearLayer<'_> {
    fn apply(&self, x: &Tensor) -> Tensor {
        // Wrong shapes panic here too.
        let mut y = match &self.adapter {
            None => linear::linear(x, self.weight),
            Some(adapter) => {
                let dropped = adapter.drops.map(|(keys, salt, rate)| dropout(x, keys, salt, rate));
                let dropped = dropped.transpose().unwrap_or_else(|error| panic!("{error}"));
                linear::adapted(x, dropped.as_ref(), self.weight, adapter.matrices)
            }
        }
        .unwrap_or_else(|error| panic!("{error}"));
        if let Some(bias) = self.bias {
            y += bias;
        }
        y
    }

    /// Applied to silu(gate) * up, which is not kept for backward unless another operation needs it.
    fn apply_gated(&self, gate: &Tensor, up: &Tensor) -> Tensor {
        match (self.bias, &self.adapter) {
            (None, None) => linear::gated(gate, up, self.weight).unwrap_or_else(|error| panic!("{error}")),
            _ => self.apply(&swiglu(gate, up)),
        }
    }
}

/// A block's tensors by purpose.
struct Layer<'a> {
    input_norm: &'a Tensor,
    query: LinearLayer<'a>,
    key: LinearLayer<'a>,
    value: LinearLayer<'a>,
    output: LinearLayer<'a>,
    query_norm: Option<&'a Tensor>,
    key_norm: Option<&'a Tensor>,
    mlp_norm: &'a Tensor,
    mlp: Mlp<'a>,
}

enum Mlp<'a> {
    Dense {
        gate: LinearLayer<'a>,
        up: LinearLayer<'a>,
        down: LinearLayer<'a>,
    },
    Mixture {
        experts: &'a Experts,
        router: &'a Tensor,
        /// Gate, up and down of each expert, one expert after the other.
        weights: &'a [Tensor],
    },
}

impl<'a> Layer<'a> {
    fn new(config: &'a Config, layout: &'a Layout, block: Block<'a>) -> Self {
        let targets = config.lora.as_ref().map_or(&[][..], |lora| lora.targets());
        let (mut rest, adapters) = block.weights.split_at(block.weights.len() - 2 * targets.len());
        let mut next = || {
            let [first, others @ ..] = rest else {
                unreachable!("a block has the tensors that weights::units lists")
            };
            rest = others;
            first
        };
        let (biased, normed) = (config.biased(), config.norms_heads());
        let adapter = |linear: Linear| {
            let at = targets.iter().position(|target| *target == linear)?;
            let lora = config.lora.as_ref()?;
            // A separate salt for each linear layer: layers with the same input must not drop the same values.
            let salt = (block.layer * Linear::ALL.len() + linear as usize) as u64;
            let drops = layout.keys().map(|keys| (keys, salt, lora.dropout));
            Some(Adapter {
                matrices: linear::LowRank {
                    a: &adapters[2 * at],
                    b: &adapters[2 * at + 1],
                    scale: lora.scale(),
                },
                drops: drops.filter(|(_, _, rate)| *rate > 0.0),
            })
        };
        let input_norm = next();
        let [query, key, value, output] = [Linear::Query, Linear::Key, Linear::Value, Linear::Output].map(|linear| {
            let weight = next();
            let bias = (biased && linear != Linear::Output).then(&mut next);
            let adapter = adapter(linear);
            LinearLayer { weight, bias, adapter }
        });
        let (query_norm, key_norm) = (normed.then(&mut next), normed.then(&mut next));
        let mlp_norm = next();
        let mlp = match (rest, &config.experts) {
            ([gate, up, down], _) => {
                let plain = |linear, weight| LinearLayer {
                    weight,
                    bias: None,
                    adapter: adapter(linear),
                };
                Mlp::Dense {
                    gate: plain(Linear::Gate, gate),
                    up: plain(Linear::Up, up),
                    down: plain(Linear::Down, down),
                }
            }
            ([router, weights @ ..], Some(experts)) => Mlp::Mixture {
                experts,
                router,
                weights,
            },
            _ => unreachable!("a block has the tensors that weights::units lists"),
        };
        Self {
            input_norm,
            query,
            key,
            value,
            output,
            query_norm,
            key_norm,
            mlp_norm,
            mlp,
        }
    }
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
