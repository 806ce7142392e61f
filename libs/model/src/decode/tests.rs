//! Decoding against itself (bits) and against the training arithmetic (a tolerance).

use super::*;
use crate::weights::{Array, units};

/// Untied, an odd number of query heads per key-value head, and widths that are not multiples of a panel.
fn config() -> Config {
    let value = serde_json::json!({
        "model_type": "qwen3", "vocab_size": 83, "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 20, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
        "max_position_embeddings": 512, "tie_word_embeddings": false
    });
    Config::parse(value.to_string().as_bytes(), "config.json").unwrap()
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn ids(&mut self, len: usize) -> Vec<u32> {
        (0..len).map(|_| (self.next() % 83) as u32).collect()
    }
}

fn random_weights(config: &Config) -> Weights {
    let mut random = Random(7);
    let tensors = units(config).into_iter().flat_map(|unit| unit.tensors);
    tensors
        .map(|(name, shape)| {
            let (middle, spread) = if name.contains("norm") { (1.0, 0.2) } else { (0.0, 0.3) };
            let mut value = || middle + spread * ((random.next() % 20_001) as f32 / 10_000.0 - 1.0);
            let values = (0..shape.iter().product()).map(|_| value()).collect();
            (name, Array { shape, values })
        })
        .collect()
}

fn logits(decoder: &Decoder, sequence: &mut Sequence, tokens: &[u32]) -> Vec<f32> {
    let mut logits = Vec::new();
    let chunk = Chunk {
        sequence,
        tokens,
        logits: Some(&mut logits),
    };
    decoder.forward(&mut [chunk], &mut [Scratch::default()]);
    logits
}

#[test]
fn pieces_of_any_size_give_the_bits_of_the_whole() {
    let config = config();
    let decoder = Decoder::new(&config, &random_weights(&config), 512).unwrap();
    let mut random = Random(1);
    let tokens = random.ids(150);
    let whole = logits(&decoder, &mut Sequence::new(), &tokens);
    for _ in 0..20 {
        let mut sequence = Sequence::new();
        let mut rest = &tokens[..];
        let mut last = Vec::new();
        while !rest.is_empty() {
            let (piece, others) = rest.split_at((1 + random.next() as usize % 40).min(rest.len()));
            last = logits(&decoder, &mut sequence, piece);
            sequence.close_full_blocks(|_, block| block);
            rest = others;
        }
        assert_eq!(last, whole);
    }
}

#[test]
fn neighbours_and_threads_do_not_show_in_a_row() {
    let config = config();
    let decoder = Decoder::new(&config, &random_weights(&config), 512).unwrap();
    let mut random = Random(2);
    let rows: Vec<Vec<u32>> = (0..23).map(|row| random.ids(1 + row * 9)).collect();
    let alone: Vec<_> = rows
        .iter()
        .map(|row| logits(&decoder, &mut Sequence::new(), row))
        .collect();
    for threads in 1..5 {
        let mut sequences: Vec<_> = rows.iter().map(|_| Sequence::new()).collect();
        let mut together = vec![Vec::new(); rows.len()];
        let mut chunks: Vec<_> = rows
            .iter()
            .zip(&mut sequences)
            .zip(&mut together)
            .map(|((tokens, sequence), logits)| Chunk {
                sequence,
                tokens,
                logits: Some(logits),
            })
            .collect();
        let mut scratches: Vec<_> = (0..threads).map(|_| Scratch::default()).collect();
        decoder.forward(&mut chunks, &mut scratches);
        assert_eq!(together, alone);
    }
}

#[test]
fn a_shared_block_gives_the_bits_of_an_own_one() {
    let config = config();
    let decoder = Decoder::new(&config, &random_weights(&config), 512).unwrap();
    let tokens = Random(3).ids(3 * BLOCK_LEN + 5);
    let mut first = Sequence::new();
    let whole = logits(&decoder, &mut first, &tokens);
    let mut blocks = Vec::new();
    first.close_full_blocks(|_, block| {
        blocks.push(block.clone());
        block
    });
    let mut second = Sequence::new();
    for block in blocks {
        assert!(second.adopt(block));
    }
    assert_eq!(logits(&decoder, &mut second, &tokens[3 * BLOCK_LEN..]), whole);
}

/// The same geometry with the positions stretched.
#[cfg(feature = "torch")]
fn stretched() -> Config {
    let yarn = crate::yarn::Yarn {
        factor: 4.0,
        original: 128,
        attention_factor: 0.1 * 4f64.ln() + 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: true,
    };
    Config {
        yarn: Some(yarn),
        ..config()
    }
}

#[test]
fn another_family_is_refused_by_name() {
    let config = Config {
        family: Family::Qwen3Moe,
        ..config()
    };
    let error = Decoder::new(&config, &Weights::new(), 512).err().unwrap();
    assert!(error.to_string().contains("qwen3_moe"), "{error}");
}

#[cfg(feature = "torch")]
#[test]
fn logprobs_are_those_of_the_training_arithmetic() {
    agree_with_training(&config());
    agree_with_training(&stretched());
}

#[cfg(feature = "torch")]
fn agree_with_training(config: &Config) {
    use crate::layout::Layout;
    use crate::model::{self, Block};
    use crate::rotation::Rope;
    use tch::{Kind, Tensor};

    let weights = random_weights(config);
    let decoder = Decoder::new(config, &weights, 512).unwrap();
    let tokens = Random(4).ids(300);

    let units = units(config);
    let tensor = |name: &str| {
        let array = &weights[name];
        let shape: Vec<i64> = array.shape.iter().map(|size| *size as i64).collect();
        Tensor::from_slice(&array.values).view(shape.as_slice())
    };
    let gathered: Vec<Vec<Tensor>> = units
        .iter()
        .map(|unit| unit.tensors.iter().map(|(name, _)| tensor(name)).collect())
        .collect();
    let ids: Vec<i64> = tokens.iter().map(|id| i64::from(*id)).collect();
    let ids = Tensor::from_slice(&ids).unsqueeze(0);
    let rope = Rope::new(config, 512, Kind::Float);
    let layout = Layout::rows(1, tokens.len() as i64);
    let mut x = model::embed(&gathered[0][0], &ids);
    for (layer, weights) in gathered[1..].iter().enumerate() {
        let block = Block { layer, weights };
        x = model::block(config, &rope, &layout, block, &x, &mut model::Pass::default());
    }
    let expected = model::head(config, &gathered[0], &x.squeeze_dim(0)).log_softmax(-1, Kind::Float);

    let mut sequence = Sequence::new();
    let mut largest = 0.0_f64;
    for (position, token) in tokens.iter().enumerate() {
        let logits = Tensor::from_slice(&logits(&decoder, &mut sequence, &[*token]));
        let distance = (logits.log_softmax(-1, Kind::Float) - expected.get(position as i64))
            .abs()
            .max();
        largest = largest.max(distance.double_value(&[]));
    }
    assert!(largest < 2e-5, "logprobs differ by up to {largest:e}");
}

#[test]
fn the_instruction_set_does_not_show() {
    let config = config();
    let decoder = Decoder::new(&config, &random_weights(&config), 512).unwrap();
    let tokens = Random(5).ids(70);
    let mut plain = Vec::new();
    let mut sequence = Sequence::new();
    let chunk = Chunk {
        sequence: &mut sequence,
        tokens: &tokens,
        logits: Some(&mut plain),
    };
    let pass = Pass {
        decoder: &decoder,
        chunks: &mut [chunk],
        scratch: &mut Scratch::default(),
    };
    Arch::Scalar.dispatch(pass);
    assert_eq!(plain, logits(&decoder, &mut Sequence::new(), &tokens));
}
