//! Figures of several ranks: 5, that they compute the same as one rank, 6, their memory, 7, that of waves of
//! micro-batches, and 9, the cost of sharding.

use std::path::Path;

use grpo_bench_report::Row;
use serde_json::{Value, json};

use crate::Failure;
use crate::cases::{Case, geometry, prepare_model};
use crate::median::median;
use crate::ranks::{How, Said, distances, run};

/// Data parallel ranks, sequence parallel ranks, ranks that share the state.
const DIVISIONS: [(u32, u32, Option<u32>); 6] = [
    (2, 1, None),
    (1, 2, None),
    (2, 2, None),
    (2, 2, Some(2)),
    (1, 4, None),
    (4, 1, Some(2)),
];

fn how(data: u32, sequence: u32, node: Option<u32>) -> How {
    How {
        world: data * sequence,
        sequence,
        node,
        double: false,
        keep: 2048,
        // Small enough that every rank has packs.
        budget: 90,
        steps: 1,
        without_collectives: false,
        memory: false,
        copies: 1,
        wave_copies: None,
        gradients: None,
    }
}

/// Models of every family, and one whose ranks copy its only group of keys and values.
fn families() -> Vec<(&'static str, Value)> {
    let with = |changes: Value| {
        let mut model = geometry(Case::Trimmed, true);
        for (field, value) in changes.as_object().into_iter().flatten() {
            model[field] = value.clone();
        }
        // Far from the nearly linear range.
        model["initializer_range"] = json!(0.2);
        model
    };
    vec![
        (
            "qwen2",
            with(json!({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]})),
        ),
        ("qwen3", with(json!({}))),
        (
            "qwen3, one group",
            with(json!({"num_key_value_heads": 1, "tie_word_embeddings": false})),
        ),
        (
            "qwen3_moe",
            with(json!({
                "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 5, "num_experts_per_tok": 2,
                "moe_intermediate_size": 20, "mlp_only_layers": [0], "norm_topk_prob": true
            })),
        ),
    ]
}

/// Figure 5: gradients of every division beside those of one rank, over packed turns of all families. The short variant
/// has three divisions, and each family in one of the schedules.
pub fn equivalence(folder: &Path, short: bool) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let divisions = if short { &DIVISIONS[1..4] } else { &DIVISIONS[..] };
    for (double, bar) in [(true, "<= 1e-10"), (false, "<= 1e-5")] {
        let mut worst = vec![0.0f64; divisions.len()];
        for (number, (family, model)) in families().into_iter().enumerate() {
            let at = folder.join(format!("5-{}", family.replace([' ', ','], "-")));
            prepare_model(&at, &model, Case::Trimmed, true)?;
            let schedules = [0, 2048].into_iter().enumerate();
            for (_, keep) in schedules.filter(|(at, _)| !short || at % 2 == number % 2) {
                let gradients = |(data, sequence, node), name: &str| -> Result<_, Failure> {
                    let path = at.join(name);
                    let how = How {
                        double,
                        keep,
                        gradients: Some(path.clone()),
                        ..how(data, sequence, node)
                    };
                    let said = run(&at, &how)?;
                    Ok((path, said[0].loss))
                };
                let (one, loss) = gradients((1, 1, None), "one.json")?;
                for (division, worst) in divisions.iter().zip(&mut worst) {
                    let (several, found) = gradients(*division, "several.json")?;
                    let apart = distances(&several, &one)?.into_iter();
                    let (name, most) = apart.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default();
                    eprintln!(
                        "{family}, {division:?}, double {double}, keep {keep}: {most:.2e} ({name}), loss {found}"
                    );
                    let of_loss = (found - loss).abs() / loss.abs().max(1e-12);
                    *worst = worst.max(most).max(of_loss);
                }
            }
        }
        let kind = if double { "fp64" } else { "fp32" };
        for ((data, sequence, node), worst) in divisions.iter().zip(worst) {
            let shards = node.map_or("all".to_owned(), |ranks| format!("groups of {ranks}"));
            let name = format!("5: {data} data parallel x {sequence} sequence parallel, sharded over {shards}, {kind}");
            rows.push(Row::significant(name, worst, "", Some(bar)).beside("one rank", 0.0));
        }
    }
    Ok(rows)
}

/// Figure 6: peak bytes of every rank's tensors in a step, estimated and counted.
pub fn memory(folder: &Path, short: bool) -> Result<Vec<Row>, Failure> {
    let at = folder.join("6-memory");
    let mut model = geometry(Case::Group, short);
    // Two ranks cannot divide the model's three groups.
    model["num_key_value_heads"] = json!(2);
    prepare_model(&at, &model, Case::Group, short)?;
    let mut rows = Vec::new();
    for (data, sequence, node) in [(2, 1, None), (1, 2, None), (4, 1, None), (2, 2, None), (2, 2, Some(2))] {
        for (schedule, keep) in [("kept", 1 << 20), ("streamed", 0)] {
            let how = How {
                keep,
                // More than one micro-batch for each rank.
                budget: if short { 40 } else { 800 },
                memory: true,
                ..how(data, sequence, node)
            };
            let said = run(&at, &how)?;
            let off = |one: &Said| one.estimated_bytes as f64 / one.peak_bytes as f64 - 1.0;
            for (rank, one) in said.iter().enumerate() {
                eprintln!(
                    "{data}x{sequence} {node:?} {schedule}, rank {rank}: {} MiB, off by {:.3}: {}",
                    one.peak_bytes >> 20,
                    off(one),
                    one.estimate
                );
            }
            let Some(worst) = said.iter().max_by(|a, b| off(a).abs().total_cmp(&off(b).abs())) else {
                continue;
            };
            let shards = node.map_or("all".to_owned(), |ranks| format!("groups of {ranks}"));
            let name = format!(
                "6: {data} data parallel x {sequence} sequence parallel, sharded over {shards}, activations {schedule}"
            );
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            rows.push(
                Row::significant(
                    format!("{name}, estimated bytes of the rank that is furthest off"),
                    mib(worst.estimated_bytes),
                    "MiB",
                    None,
                )
                .beside("counted by the allocator", mib(worst.peak_bytes)),
            );
            // In the short variant, most bytes are in parts that the estimate leaves out.
            let bar = (!short).then_some("<= 15");
            rows.push(Row::significant(
                format!("{name}, off by"),
                off(worst).abs() * 100.0,
                "%",
                bar,
            ));
        }
    }
    Ok(rows)
}

/// Figure 7: the peak bytes of a step with 64 times the tokens of one wave beside those of that wave, and its loss and
/// gradients beside those of a step whose micro-batches go through the blocks all at once.
pub fn waves(folder: &Path, short: bool) -> Result<Vec<Row>, Failure> {
    const TIMES: usize = 64;
    let at = folder.join("7-waves");
    let mut model = geometry(Case::Group, short);
    if !short {
        // 200,000 tokens of the other figures' model would take an hour.
        let small = json!({"vocab_size": 1024, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32});
        for (field, value) in small.as_object().into_iter().flatten() {
            model[field] = value.clone();
        }
    }
    prepare_model(&at, &model, Case::Group, short)?;
    let with = |copies: usize, wave: usize, gradients: Option<&Path>| How {
        keep: 0,
        budget: if short { 40 } else { 800 },
        memory: gradients.is_none(),
        copies,
        wave_copies: Some(wave),
        gradients: gradients.map(Path::to_path_buf),
        ..how(1, 1, None)
    };
    let peak = |copies| -> Result<f64, Failure> {
        let bytes = run(&at, &with(copies, 1, None))?[0].peak_bytes;
        eprintln!("{copies} times the tokens of a wave: {} MiB", bytes >> 20);
        Ok(bytes as f64)
    };
    let (one, many) = (peak(1)?, peak(TIMES)?);
    let gradients = |wave, name: &str| -> Result<_, Failure> {
        let path = at.join(name);
        let said = run(&at, &with(TIMES, wave, Some(&path)))?;
        Ok((path, said[0].loss))
    };
    let (in_waves, loss) = gradients(1, "waves.json")?;
    let (at_once, whole) = gradients(TIMES, "once.json")?;
    let apart = distances(&in_waves, &at_once)?.into_iter().map(|(_, apart)| apart);
    let row = |what: &str, value, bar| {
        Row::significant(
            format!("7: {TIMES} times the tokens of a wave, {what}"),
            value,
            "",
            Some(bar),
        )
    };
    // In the short variant, a wave's inputs are less than the rows themselves.
    let peak = Row::significant(
        format!("7: {TIMES} times the tokens of a wave, peak bytes"),
        many / f64::from(1 << 20),
        "MiB",
        None,
    );
    let ratio = row("peak bytes / those of one wave", many / one, "<= 1.1");
    Ok(vec![
        peak.beside("one wave", one / f64::from(1 << 20)),
        if short { Row { bar: None, ..ratio } } else { ratio },
        row("largest distance of a gradient", apart.fold(0.0, f64::max), "<= 1e-5").beside("all at once", 0.0),
        row(
            "distance of the loss",
            (loss - whole).abs() / whole.abs().max(1e-12),
            "<= 1e-5",
        )
        .beside("all at once", 0.0),
    ])
}

/// Figure 9: two ranks beside the same two ranks without communication.
pub fn cost(folder: &Path, short: bool, rounds: usize) -> Result<Vec<Row>, Failure> {
    let at = folder.join("9-sharding");
    prepare_model(&at, &geometry(Case::Group, short), Case::Group, short)?;
    let mut rows = Vec::new();
    for (schedule, keep) in [("kept", 2048), ("streamed", 0)] {
        let mut seconds: [Vec<f64>; 2] = Default::default();
        for round in 0..rounds {
            // The two take turns in going first.
            for at_ in [round % 2, (round + 1) % 2] {
                let how = How {
                    keep,
                    budget: 4096,
                    steps: 3,
                    without_collectives: at_ == 1,
                    ..how(2, 1, None)
                };
                // All ranks end a step together.
                let said = run(&at, &how)?;
                eprintln!("{schedule}, without collectives {}: {:?}", at_ == 1, said[0].seconds);
                seconds[at_].push(median(said[0].seconds.clone()));
            }
        }
        let [sharded, alone] = seconds.map(median);
        let row = |what: &str, value: f64, unit: &str, bar| {
            Row::significant(format!("9: {what}, activations {schedule}"), value, unit, bar)
        };
        rows.push(row("a step of two ranks", sharded, "s", None).beside("sending nothing", alone));
        // In the short variant, a step is all latency.
        let bar = (!short).then_some("<= 10");
        rows.push(row("cost of sharding", (sharded / alone - 1.0) * 100.0, "%", bar));
    }
    Ok(rows)
}
