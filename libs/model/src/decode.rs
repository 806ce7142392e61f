//! Decoding with a key-value cache, for sampling in the embedded engine.
//!
//! It shares configuration and weights with the rest of the crate; only the arithmetic differs. Training needs large
//! products and gradients, and uses libtorch. Decoding processes few rows at a time and needs *batch invariance*: a
//! sampled token and its logprob must not depend on the other rows of the step. [`kernel`] guarantees this by
//! construction, so prefill and decode are one function. Its input is several sequences, each with its next tokens; its
//! output is logits where requested. Shared prefixes and chunked prefill then need no special care: they give the same
//! bits.

mod cache;
mod kernel;
#[cfg(test)]
mod tests;

pub use cache::{Block, Sequence};
pub use kernel::LANES as BLOCK_LEN;

use crate::config::{Config, Family};
use crate::error::ModelError;
use crate::rope::frequencies;
use crate::weights::Weights;
use kernel::{LANES, Panels, accumulate, add, exp, gated, rms_norm, sum};
use pulp::{Arch, NullaryFnOnce};

/// The geometry as plain numbers, for the loops.
struct Shape {
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    intermediate: usize,
    vocabulary: usize,
    epsilon: f32,
}

struct Layer {
    attention_norm: Vec<f32>,
    qkv: Panels,
    query_norm: Vec<f32>,
    key_norm: Vec<f32>,
    output: Panels,
    mlp_norm: Vec<f32>,
    gate_up: Panels,
    down: Panels,
}

/// A model packed for decoding. Immutable, so threads share it.
pub struct Decoder {
    shape: Shape,
    embedding: Vec<f32>,
    layers: Vec<Layer>,
    final_norm: Vec<f32>,
    head: Panels,
    /// Cosines and sines, `[position][head_dim / 2]`.
    rope: (Vec<f32>, Vec<f32>),
}

/// The next tokens of one sequence.
pub struct Chunk<'a> {
    pub sequence: &'a mut Sequence,
    pub tokens: &'a [u32],
    /// The buffer for the logits after the last token, if requested.
    pub logits: Option<&'a mut Vec<f32>>,
}

/// Working memory of one thread, kept between calls.
#[derive(Default)]
pub struct Scratch {
    x: Vec<f32>,
    normed: Vec<f32>,
    qkv: Vec<f32>,
    mixed: Vec<f32>,
    projected: Vec<f32>,
    gate_up: Vec<f32>,
    gated: Vec<f32>,
    scores: Vec<f32>,
    last: Vec<f32>,
    logits: Vec<f32>,
}

impl Decoder {
    /// Packs a model for sequences of at most `max_context` positions. Only Qwen3 dense is supported.
    pub fn new(config: &Config, weights: &Weights, max_context: usize) -> Result<Self, ModelError> {
        if config.family != Family::Qwen3 {
            return Err(ModelError::Unsupported {
                path: "the model".to_owned(),
                field: "model_type",
                found: config.family.name().to_owned(),
                wanted: "the embedded engine decodes qwen3; serve this model with another engine",
            });
        }
        let tensor = |name: &str| match weights.get(name) {
            Some(array) => Ok(array.values.as_slice()),
            None => Err(ModelError::MissingTensor {
                path: "the model".to_owned(),
                name: name.to_owned(),
            }),
        };
        let shape = Shape {
            hidden: config.hidden_size,
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim(),
            intermediate: config.intermediate_size,
            vocabulary: config.vocab_size,
            epsilon: config.rms_norm_eps as f32,
        };
        let hidden = shape.hidden;
        let layers = (0..config.num_hidden_layers)
            .map(|index| {
                let part = |name: &str| tensor(&format!("model.layers.{index}.{name}.weight"));
                let qkv = [
                    part("self_attn.q_proj")?,
                    part("self_attn.k_proj")?,
                    part("self_attn.v_proj")?,
                ];
                let gate_up = [part("mlp.gate_proj")?, part("mlp.up_proj")?];
                Ok(Layer {
                    attention_norm: part("input_layernorm")?.to_vec(),
                    qkv: Panels::pack(&qkv, hidden),
                    query_norm: part("self_attn.q_norm")?.to_vec(),
                    key_norm: part("self_attn.k_norm")?.to_vec(),
                    output: Panels::pack(&[part("self_attn.o_proj")?], shape.heads * shape.head_dim),
                    mlp_norm: part("post_attention_layernorm")?.to_vec(),
                    gate_up: Panels::pack(&gate_up, hidden),
                    down: Panels::pack(&[part("mlp.down_proj")?], shape.intermediate),
                })
            })
            .collect::<Result<_, ModelError>>()?;
        let embedding = tensor("model.embed_tokens.weight")?.to_vec();
        let head = match config.tie_word_embeddings {
            true => Panels::pack(&[&embedding], hidden),
            false => Panels::pack(&[tensor("lm_head.weight")?], hidden),
        };
        let rope = rope_tables(config, max_context);
        let final_norm = tensor("model.norm.weight")?.to_vec();
        Ok(Self {
            shape,
            embedding,
            layers,
            final_norm,
            head,
            rope,
        })
    }

    pub fn vocabulary(&self) -> usize {
        self.shape.vocabulary
    }

    /// Bytes of keys and values per block of [`BLOCK_LEN`] positions.
    pub fn block_bytes(&self) -> usize {
        self.block_len() * size_of::<f32>()
    }

    /// Reads every chunk's tokens into its sequence and computes the requested logits. Work is divided over as many
    /// threads as there are scratches; the division does not affect the results.
    ///
    /// The caller must check token ids and lengths: an id outside the vocabulary panics.
    pub fn forward(&self, chunks: &mut [Chunk<'_>], scratches: &mut [Scratch]) {
        let total: usize = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
        let share = total.div_ceil(scratches.len().max(1)).max(1);
        std::thread::scope(|scope| {
            let mut rest = chunks;
            let last = scratches.len().saturating_sub(1);
            for (index, scratch) in scratches.iter_mut().enumerate() {
                let mut tokens = 0;
                let take = rest.iter().take_while(|chunk| {
                    let room = tokens < share;
                    tokens += chunk.tokens.len();
                    room
                });
                let take = if index == last { rest.len() } else { take.count() };
                let (mine, others) = std::mem::take(&mut rest).split_at_mut(take);
                rest = others;
                let pass = Pass {
                    decoder: self,
                    chunks: mine,
                    scratch,
                };
                if index == last {
                    Arch::new().dispatch(pass);
                } else {
                    scope.spawn(|| Arch::new().dispatch(pass));
                }
            }
        });
    }

    fn block_len(&self) -> usize {
        self.layers.len() * self.shape.kv_heads * self.head_block_len()
    }

    /// One head's keys and values of one block.
    fn head_block_len(&self) -> usize {
        let dim = self.shape.head_dim;
        (dim + dim.next_multiple_of(LANES)) * LANES
    }
}

/// Cosine and sine of each position's angles, rounded once from f64 as in training.
fn rope_tables(config: &Config, positions: usize) -> (Vec<f32>, Vec<f32>) {
    let (frequencies, scale) = frequencies(config);
    let angles = (0..positions).flat_map(|position| frequencies.iter().map(move |speed| position as f64 * speed));
    let rounded = |value: f64| (value * scale) as f32;
    angles.map(|angle| (rounded(angle.cos()), rounded(angle.sin()))).unzip()
}

/// One thread's part of a forward pass.
struct Pass<'a, 'c> {
    decoder: &'a Decoder,
    chunks: &'a mut [Chunk<'c>],
    scratch: &'a mut Scratch,
}

impl NullaryFnOnce for Pass<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self {
            decoder,
            chunks,
            scratch,
        } = self;
        let shape = &decoder.shape;
        if chunks.is_empty() {
            return;
        }
        scratch.x.clear();
        for chunk in chunks.iter_mut() {
            chunk.sequence.extend(chunk.tokens.len(), decoder.block_len());
            for token in chunk.tokens {
                let row = *token as usize * shape.hidden;
                scratch.x.extend_from_slice(&decoder.embedding[row..row + shape.hidden]);
            }
        }
        let tokens = scratch.x.len() / shape.hidden;
        scratch.normed.resize(tokens * shape.hidden, 0.0);
        scratch.projected.resize(tokens * shape.hidden, 0.0);
        scratch.mixed.resize(tokens * shape.heads * shape.head_dim, 0.0);
        scratch.gated.resize(tokens * shape.intermediate, 0.0);
        for (index, layer) in decoder.layers.iter().enumerate() {
            rms_norm(&scratch.x, &layer.attention_norm, shape.epsilon, &mut scratch.normed);
            scratch.qkv.resize(tokens * layer.qkv.outputs(), 0.0);
            layer.qkv.apply(&scratch.normed, &mut scratch.qkv);
            store_keys_and_values(decoder, index, chunks, &mut scratch.qkv);
            attend(
                decoder,
                index,
                chunks,
                &scratch.qkv,
                &mut scratch.scores,
                &mut scratch.mixed,
            );
            layer.output.apply(&scratch.mixed, &mut scratch.projected);
            add(&mut scratch.x, &scratch.projected);

            rms_norm(&scratch.x, &layer.mlp_norm, shape.epsilon, &mut scratch.normed);
            scratch.gate_up.resize(tokens * layer.gate_up.outputs(), 0.0);
            layer.gate_up.apply(&scratch.normed, &mut scratch.gate_up);
            gated(&scratch.gate_up, shape.intermediate, &mut scratch.gated);
            layer.down.apply(&scratch.gated, &mut scratch.projected);
            add(&mut scratch.x, &scratch.projected);
        }
        hand_out_logits(decoder, chunks, scratch);
    }
}

/// Normalises and rotates queries and keys in place, and puts keys and values into the caches.
#[inline(always)]
fn store_keys_and_values(decoder: &Decoder, index: usize, chunks: &mut [Chunk<'_>], qkv: &mut [f32]) {
    let shape = &decoder.shape;
    let layer = &decoder.layers[index];
    let dim = shape.head_dim;
    let head_block = decoder.head_block_len();
    let mut rows = qkv.chunks_exact_mut(layer.qkv.outputs());
    for chunk in chunks {
        let end = chunk.sequence.len();
        for (position, row) in (end - chunk.tokens.len()..end).zip(&mut rows) {
            let (queries, rest) = row.split_at_mut(shape.heads * dim);
            let (keys, values) = rest.split_at_mut(shape.kv_heads * dim);
            for query in queries.chunks_exact_mut(dim) {
                normalise_and_rotate(decoder, query, &layer.query_norm, position);
            }
            for key in keys.chunks_exact_mut(dim) {
                normalise_and_rotate(decoder, key, &layer.key_norm, position);
            }
            let lane = position % LANES;
            let block = &mut chunk.sequence.open_block(position)[index * shape.kv_heads * head_block..];
            let heads = keys.chunks_exact(dim).zip(values.chunks_exact(dim));
            for ((key, value), block) in heads.zip(block.chunks_exact_mut(head_block)) {
                let (key_panel, value_panel) = block.split_at_mut(dim * LANES);
                for (d, key) in key.iter().enumerate() {
                    key_panel[d * LANES + lane] = *key;
                }
                for (part, value) in value.chunks(LANES).enumerate() {
                    value_panel[(part * LANES + lane) * LANES..][..value.len()].copy_from_slice(value);
                }
            }
        }
    }
}

#[inline(always)]
fn normalise_and_rotate(decoder: &Decoder, head: &mut [f32], weight: &[f32], position: usize) {
    let scale = 1.0 / (sum(head, |value| value * value) / head.len() as f32 + decoder.shape.epsilon).sqrt();
    let half = head.len() / 2;
    let cosines = &decoder.rope.0[position * half..][..half];
    let sines = &decoder.rope.1[position * half..][..half];
    let (low, high) = head.split_at_mut(half);
    for i in 0..half {
        let (a, b) = (low[i] * scale * weight[i], high[i] * scale * weight[i + half]);
        low[i] = a * cosines[i] - b * sines[i];
        high[i] = b * cosines[i] + a * sines[i];
    }
}

/// Attention of every token to the positions up to its own.
#[inline(always)]
fn attend(
    decoder: &Decoder,
    index: usize,
    chunks: &[Chunk<'_>],
    qkv: &[f32],
    scores: &mut Vec<f32>,
    mixed: &mut [f32],
) {
    let shape = &decoder.shape;
    let dim = shape.head_dim;
    let group = shape.heads / shape.kv_heads;
    let mut rows = qkv.chunks_exact(decoder.layers[index].qkv.outputs());
    let mut outs = mixed.chunks_exact_mut(shape.heads * dim);
    for chunk in chunks {
        let end = chunk.sequence.len();
        for ((position, row), out) in (end - chunk.tokens.len()..end).zip(&mut rows).zip(&mut outs) {
            let heads = row[..shape.heads * dim]
                .chunks_exact(group * dim)
                .zip(out.chunks_exact_mut(group * dim));
            for (kv_head, (queries, out)) in heads.enumerate() {
                let offset = (index * shape.kv_heads + kv_head) * decoder.head_block_len();
                let read = Read {
                    sequence: chunk.sequence,
                    offset,
                    dim,
                    visible: position + 1,
                };
                let pairs = queries.chunks_exact(2 * dim).zip(out.chunks_exact_mut(2 * dim));
                for (queries, out) in pairs {
                    attend_heads::<2>(&read, queries, scores, out);
                }
                if group % 2 == 1 {
                    let at = (group - 1) * dim;
                    attend_heads::<1>(&read, &queries[at..], scores, &mut out[at..]);
                }
            }
        }
    }
}

/// One head's keys and values, up to the positions that one token attends to.
struct Read<'a> {
    sequence: &'a Sequence,
    offset: usize,
    dim: usize,
    visible: usize,
}

/// Attention of `M` query heads that share keys and values.
#[inline(always)]
fn attend_heads<const M: usize>(read: &Read<'_>, queries: &[f32], scores: &mut Vec<f32>, out: &mut [f32]) {
    let Read {
        sequence,
        offset,
        dim,
        visible,
    } = *read;
    let blocks = visible.div_ceil(LANES);
    let padded = blocks * LANES;
    let scale = 1.0 / (dim as f32).sqrt();
    scores.resize(M * padded, 0.0);

    let rows: [&[f32]; M] = std::array::from_fn(|m| &queries[m * dim..][..dim]);
    for number in 0..blocks {
        let mut sums = [[0.0; LANES]; M];
        accumulate(rows, &sequence.block(number)[offset..][..dim * LANES], &mut sums);
        for (m, sums) in sums.iter().enumerate() {
            for (score, sum) in scores[m * padded + number * LANES..][..LANES].iter_mut().zip(sums) {
                *score = sum * scale;
            }
        }
    }
    let mut totals = [0.0; M];
    for (scores, total) in scores.chunks_exact_mut(padded).zip(&mut totals) {
        let highest = scores[..visible]
            .iter()
            .fold(f32::NEG_INFINITY, |highest, score| highest.max(*score));
        for score in scores.iter_mut() {
            *score = exp(*score - highest);
        }
        *total = sum(&scores[..visible], |score| score);
    }
    for part in 0..dim.div_ceil(LANES) {
        let mut sums = [[0.0; LANES]; M];
        for number in 0..blocks {
            let positions = LANES.min(visible - number * LANES);
            let weights: [&[f32]; M] = std::array::from_fn(|m| &scores[m * padded + number * LANES..][..positions]);
            let values = &sequence.block(number)[offset + dim * LANES + part * LANES * LANES..][..positions * LANES];
            accumulate(weights, values, &mut sums);
        }
        for m in 0..M {
            let width = LANES.min(dim - part * LANES);
            for (out, sum) in out[m * dim + part * LANES..][..width].iter_mut().zip(&sums[m]) {
                *out = sum / totals[m];
            }
        }
    }
}

/// Logits after the last token of each chunk that requests them.
#[inline(always)]
fn hand_out_logits(decoder: &Decoder, chunks: &mut [Chunk<'_>], scratch: &mut Scratch) {
    let hidden = decoder.shape.hidden;
    scratch.last.clear();
    let mut end = 0;
    for chunk in chunks.iter() {
        end += chunk.tokens.len();
        if chunk.logits.is_some() && !chunk.tokens.is_empty() {
            scratch
                .last
                .extend_from_slice(&scratch.x[(end - 1) * hidden..end * hidden]);
        }
    }
    scratch.normed.resize(scratch.last.len(), 0.0);
    rms_norm(
        &scratch.last,
        &decoder.final_norm,
        decoder.shape.epsilon,
        &mut scratch.normed,
    );
    scratch
        .logits
        .resize(scratch.last.len() / hidden * decoder.head.outputs(), 0.0);
    decoder.head.apply(&scratch.normed, &mut scratch.logits);
    let mut rows = scratch.logits.chunks_exact(decoder.head.outputs());
    for chunk in chunks {
        if chunk.tokens.is_empty() {
            continue;
        }
        if let Some(logits) = &mut chunk.logits {
            logits.clear();
            logits.extend_from_slice(rows.next().unwrap_or_default());
        }
    }
}
