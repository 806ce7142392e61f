use super::*;

fn facts(dims: ParallelDims, world: u32) -> Facts {
    let config = serde_json::json!({
        "model_type": "qwen3", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
        "max_position_embeddings": 512, "tie_word_embeddings": true
    });
    let config = Config::parse(config.to_string().as_bytes(), "config.json");
    let mut facts = Facts::of(&config.unwrap_or_else(|error| panic!("{error}")), dims, world);
    facts.head_logits = 10_000;
    facts
}

fn load(tokens: u64) -> Load {
    Load {
        tokens: vec![tokens; 2],
        trained: tokens / 2,
    }
}

#[test]
fn more_ranks_hold_less_each_and_copies_of_the_state_hold_more() {
    let total = |dims, world| facts(dims, world).estimate(&load(100), Schedule::Streamed).state;
    let node = |shard| ParallelDims {
        sequence: 1,
        shard: Some(shard),
    };
    assert!(total(ParallelDims::DATA_PARALLEL, 4) < total(ParallelDims::DATA_PARALLEL, 2));
    assert_eq!(total(node(2), 4), total(ParallelDims::DATA_PARALLEL, 2));
}

#[test]
fn keeping_grows_faster_with_tokens_than_streaming() {
    let facts = facts(ParallelDims::DATA_PARALLEL, 2);
    let total = |tokens, schedule| facts.estimate(&load(tokens), schedule).total();
    let grown = |schedule| total(9000, schedule) - total(1000, schedule);
    assert!(grown(Schedule::Kept) > 2 * grown(Schedule::Streamed));
}

#[test]
fn what_keeping_takes_is_the_largest_micro_batch_beside_whole_units_and_gradients() {
    let kept = |tokens: &[u64], world| {
        let load = Load {
            tokens: tokens.to_vec(),
            trained: 10,
        };
        facts(ParallelDims::DATA_PARALLEL, world).kept_bytes(&load)
    };
    // Of a token: what autograd keeps in four layers, and what the last one's backward pass makes beside it.
    let (one, two) = (kept(&[2000], 2), kept(&[3000], 2));
    let facts = facts(ParallelDims::DATA_PARALLEL, 2);
    let token = (0..4).map(|layer| facts.saved(layer)).sum::<u64>() + facts.transient(3);
    assert_eq!(two - one, 1000 * MASTER * token);
    assert_eq!(kept(&[3000, 3000, 10], 2), kept(&[3000, 10], 2));
    // Units and gradients are whole however many ranks there are, but a rank alone computes with its own.
    let whole: u64 = facts.trained.iter().map(|values| MASTER * values).sum();
    assert_eq!((kept(&[3000], 4), kept(&[3000], 2) - kept(&[3000], 1)), (two, whole));
}

#[test]
fn what_cannot_fit_is_refused_with_the_sum_and_what_to_change() {
    let facts = facts(ParallelDims::DATA_PARALLEL, 2);
    assert!(facts.announce(512, None).is_ok() && facts.announce(512, Some(1 << 30)).is_ok());
    let error = facts.announce(512, Some(100_000)).map_err(|error| error.to_string());
    let error = error.err().unwrap_or_default();
    for words in [
        "parameters, moments and tables",
        "gathered units",
        "trainer.nodes",
        "a rank has 0.1 MiB",
    ] {
        assert!(error.contains(words), "{error}");
    }
}
