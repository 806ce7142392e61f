//! Every family of models, whole and with an adapter: steps over ranks, shards read from files, exports read back.

use std::path::Path;

use crate::common::{algorithm, batch, family_config as config, family_json as config_json, flat, ranks};
use grpo_crds::algorithm::Algorithm;
use grpo_model::adapter;
use grpo_model::lora::{Linear, Lora};
use grpo_model::weights::Precision;
use grpo_model::weights::{self, Source, Weights};
use grpo_model::{Config, Family};
use grpo_native::{Group, Rendezvous};
use grpo_trainer::export::{Form, Options};
use grpo_trainer::grpo;
use grpo_trainer::initial::initial_weights;
use grpo_trainer::loss_fn::Model;
use grpo_trainer::micro_batch::MicroBatch;
use grpo_trainer::sharded::Sharded;
use grpo_trainer::train_row::TrainRow;
use serde_json::{Value, json};

const FAMILIES: [&str; 3] = ["qwen2", "qwen3", "qwen3_moe"];

fn alone() -> Group {
    Group::join(&Rendezvous::alone()).unwrap()
}

/// A model of the family, with an adapter beside it if asked.
fn model(family: &str, group: Group, adapted: bool) -> Sharded {
    let config = config(family);
    let weights = initial_weights(&config, 5);
    let model = Sharded::new(config, group, &weights).unwrap();
    match adapted {
        false => model,
        true => model.with_adapter(adapter(family), 9).unwrap(),
    }
}

fn adapter(family: &str) -> Lora {
    let targets: &[&str] = match family {
        "qwen3_moe" => &["q_proj", "v_proj"],
        _ => &["q_proj", "o_proj", "down_proj"],
    };
    Lora::new(3, 6.0, targets).unwrap()
}

/// Takes two steps; returns the weights after each.
fn stepped(model: &mut Sharded) -> Vec<Vec<f32>> {
    let step = |step| {
        grpo::step(model, &batch(step), "batch", &algorithm(), 0).unwrap();
        flat(&model.weights().unwrap())
    };
    (1..=2).map(step).collect()
}

/// |a - b| / |b|.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(a - b))) / norm(&mut b.iter().map(|b| f64::from(*b)))
}

fn options(form: Form, precision: Precision, file_bytes: u64) -> Options {
    Options {
        form,
        precision,
        file_bytes,
    }
}

/// A model directory without weights.
fn base(folder: &Path, family: &str) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("config.json"), config_json(family).to_string()).unwrap();
    std::fs::write(folder.join("tokenizer.json"), "{}").unwrap();
}

#[test]
fn two_ranks_step_every_family_as_one_does() {
    for family in FAMILIES {
        for adapted in [false, true] {
            let before = flat(&model(family, alone(), adapted).weights().unwrap());
            let expected = stepped(&mut model(family, alone(), adapted));
            assert!(
                distance(&expected[1], &before) > 1e-4,
                "{family}: the steps did nothing"
            );
            for found in ranks(2, |group| stepped(&mut model(family, group, adapted))) {
                for (found, expected) in found.iter().zip(&expected) {
                    let apart = distance(found, expected);
                    assert!(apart < 1e-5, "{family}, adapter {adapted}: {apart:e}");
                }
            }
        }
    }
}

#[test]
fn a_step_repeats_bit_by_bit() {
    for family in FAMILIES {
        let first = stepped(&mut model(family, alone(), false));
        assert_eq!(stepped(&mut model(family, alone(), false)), first, "{family}");
    }
}

#[test]
fn an_adapter_learns_and_its_base_stays() {
    for family in FAMILIES {
        let mut model = model(family, alone(), true);
        let before = model.weights().unwrap();
        assert_eq!(
            before,
            initial_weights(&config(family), 5),
            "{family}: an adapter begins at nothing"
        );
        stepped(&mut model);
        let after = model.weights().unwrap();
        let targets: Vec<String> = adapter(family)
            .targets()
            .iter()
            .map(|t| format!("{}.weight", t.path()))
            .collect();
        for (name, array) in &after {
            let trained = targets.iter().any(|target| name.ends_with(target));
            assert_eq!(array != &before[name], trained, "{family}: {name}");
        }
    }
}

#[test]
fn every_token_of_a_mixture_is_counted_at_its_experts() {
    let loads = |mut model: Sharded| {
        stepped(&mut model);
        model.expert_loads().unwrap()
    };
    assert!(loads(model("qwen3", alone(), false)).iter().all(Vec::is_empty));
    let one = loads(model("qwen3_moe", alone(), false));
    assert!(one[0].is_empty() && one[1].len() == 5, "{one:?}");
    // Two experts per token, for groups with a signal; tokens after a row's last trained token are not computed.
    let rows = batch(2).rows;
    let tokens: usize = rows
        .iter()
        .filter(|row| row.group < 2)
        .filter_map(|row| row.mask.iter().rposition(|mask| *mask == 1))
        .sum();
    // A common first token of rows is computed once.
    let counted = one[1].iter().sum::<u64>() as usize;
    assert!(
        (2 * (tokens - rows.len())..=2 * tokens).contains(&counted),
        "{one:?}, {tokens} tokens"
    );
}

#[test]
fn ranks_without_rows_sum_a_mixtures_loads_with_the_others() {
    let step = |group: Group| {
        let mut model = model("qwen3_moe", group, false);
        // Two rows, so at most two packs.
        let mut short = batch(1);
        short.rows.retain(|row| row.group == 0);
        short.rows.truncate(2);
        for row in &mut short.rows {
            row.tokens.truncate(8);
            row.logprobs.truncate(8);
            row.mask.truncate(8);
            row.weights[0].to = 8;
        }
        let metrics = grpo::step(&mut model, &short, "batch", &algorithm(), 0).unwrap();
        (metrics.unique_tokens, model.expert_loads().unwrap())
    };
    let alone = step(alone());
    assert!(alone.1[1].iter().sum::<u64>() > 0, "{alone:?}");
    for found in ranks(5, step) {
        assert_eq!(found, alone);
    }
}

#[test]
fn a_rank_that_reads_its_shard_holds_what_it_would_take_of_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    for family in FAMILIES {
        let at = folder.path().join(family);
        base(&at, family);
        let whole = at.join("whole");
        model(family, alone(), false)
            .export(&whole, &at, &options(Form::Model, Precision::F32, 9_000))
            .unwrap();
        let shards = |model: &Sharded| -> Vec<Vec<f32>> {
            model
                .shards
                .iter()
                .map(|shard| Vec::<f32>::try_from(&shard.values).unwrap())
                .collect()
        };
        let same = ranks(3, |group| {
            let config = Config::read(&whole).unwrap();
            let weights = weights::read(&whole, &config).unwrap();
            let source = Source::open(&whole, &config).unwrap();
            let taken = Sharded::new(config.clone(), group, &weights).unwrap();
            let expected = shards(&taken);
            let read = Sharded::read(config, taken.group, &source).unwrap();
            // A rank that leaves while another rank is still joining breaks the connections of that rank.
            read.group.barrier().unwrap();
            shards(&read) == expected
        });
        assert_eq!(same, [true; 3], "{family}");
    }
}

#[test]
fn an_exported_model_is_read_back_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    for family in FAMILIES {
        let at = folder.path().join(family);
        base(&at, family);
        let mut trained = model(family, alone(), true);
        stepped(&mut trained);
        let expected = trained.weights().unwrap();

        let merged = at.join("merged");
        trained
            .export(&merged, &at, &options(Form::Model, Precision::F32, 20_000))
            .unwrap();
        assert!(merged.join("model.safetensors.index.json").exists() && merged.join("tokenizer.json").exists());
        assert_eq!(
            weights::read(&merged, &Config::read(&merged).unwrap()).unwrap(),
            expected,
            "{family}"
        );

        let halves = at.join("halves");
        trained
            .export(&halves, &at, &options(Form::Model, Precision::Bf16, u64::MAX))
            .unwrap();
        let read = weights::read(&halves, &Config::read(&halves).unwrap()).unwrap();
        let apart = distance(&flat(&read), &flat(&expected));
        assert!(apart > 0.0 && apart < 4e-3, "{family}: {apart:e}");
        let written: Value = serde_json::from_slice(&std::fs::read(halves.join("config.json")).unwrap()).unwrap();
        assert_eq!(written["dtype"], "bfloat16");

        let adapter = at.join("adapter");
        trained
            .export(&adapter, &at, &options(Form::Adapter, Precision::F32, u64::MAX))
            .unwrap();
        let (lora, matrices): (Lora, Weights) = adapter::read(&adapter, &config(family)).unwrap();
        let again = model(family, alone(), false).with_adapter_of(lora, &matrices).unwrap();
        assert_eq!(again.weights().unwrap(), expected, "{family}");
    }
}

#[test]
fn what_cannot_be_exported_is_refused_on_every_rank_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    base(folder.path(), "qwen3");
    let target = folder.path().join("adapter");
    let refused = ranks(2, |group| {
        let model = model("qwen3", group, false);
        let written = model.export(&target, folder.path(), &options(Form::Adapter, Precision::F32, 1));
        written.unwrap_err().to_string()
    });
    assert!(
        refused[0].contains("this model has none") && refused[1].contains("rank 0"),
        "{refused:?}"
    );
    assert!(!target.exists());
}

#[test]
fn a_value_that_is_no_number_is_refused_by_tensor() {
    let folder = tempfile::tempdir().unwrap();
    for family in Family::ALL.map(Family::name) {
        let at = folder.path().join(family);
        base(&at, family);
        let config = config(family);
        let mut weights = initial_weights(&config, 1);
        let name = "model.layers.1.self_attn.k_proj.weight";
        weights.get_mut(name).unwrap().values[17] = f32::NAN;
        std::fs::write(at.join("model.safetensors"), weights::to_safetensors(&weights).unwrap()).unwrap();
        let source = Source::open(&at, &config).unwrap();
        let error = Sharded::read(config, alone(), &source).err().unwrap().to_string();
        assert!(error.contains(name) && error.contains("value 17 is NaN"), "{error}");
    }
}

/// Logprobs of tokens 1.. of each row at temperature 1.
fn logprobs(model: &Sharded, rows: &[TrainRow]) -> Vec<Vec<f32>> {
    let one = |row: &TrainRow| {
        let mut found = Vec::new();
        let batch = MicroBatch::padded(std::slice::from_ref(row), 0);
        let mut note =
            |_, _: &MicroBatch, logprobs: &[f64], _: &[f64]| found.extend(logprobs.iter().map(|x| *x as f32));
        model.observe(Model::Policy, &[&batch], &mut note).unwrap();
        found
    };
    rows.iter().map(one).collect()
}

/// A geometry that vLLM's kernels take: heads of 32, widths that are multiples of it.
fn for_engines(family: &str) -> Value {
    let mut value = config_json(family);
    let shape = [
        ("hidden_size", 64),
        ("intermediate_size", 64),
        ("num_attention_heads", 2),
        ("head_dim", 32),
    ];
    for (field, number) in shape {
        value[field] = number.into();
    }
    if family == "qwen3_moe" {
        value["moe_intermediate_size"] = 32.into();
        value["num_experts"] = 4.into();
    }
    value["architectures"] = match family {
        "qwen2" => json!(["Qwen2ForCausalLM"]),
        "qwen3" => json!(["Qwen3ForCausalLM"]),
        _ => json!(["Qwen3MoeForCausalLM"]),
    };
    value["hidden_act"] = "silu".into();
    value["norm_topk_prob"] = true.into();
    value
}

/// `make check-exports` names the folder and loads the exports with other programs.
#[test]
#[ignore = "writes to a folder for make check-exports"]
fn what_is_trained_is_exported_for_others() {
    let folder = std::path::PathBuf::from(std::env::var("GRPO_EXPORTS").unwrap());
    let row = |begin: u32| TrainRow {
        tokens: (0..30).map(|i| (begin + 7 * i + i * i) % 64).collect(),
        weights: vec![1.0; 30],
        temperature: 1.0,
        ..Default::default()
    };
    let rows: Vec<TrainRow> = (0..4).map(row).collect();
    let fast = Algorithm {
        learning_rate: 1e-2,
        ..algorithm()
    };
    for family in FAMILIES {
        let at = folder.join(family);
        std::fs::create_dir_all(&at).unwrap();
        std::fs::write(at.join("config.json"), for_engines(family).to_string()).unwrap();
        let config = Config::read(&at).unwrap();
        let whole = |precision| options(Form::Model, precision, 30_000);
        let fresh = || Sharded::new(config.clone(), alone(), &initial_weights(&config, 5)).unwrap();
        // A run's default layers: engines fuse some of them.
        let targets = Linear::ALL
            .into_iter()
            .filter(|linear| config.experts.is_none() || *linear < Linear::Gate)
            .map(Linear::name);
        let lora = Lora::new(3, 6.0, &targets.collect::<Vec<_>>()).unwrap();
        let (mut tuned, mut adapted) = (fresh(), fresh().with_adapter(lora, 9).unwrap());
        tuned.export(&at.join("base"), &at, &whole(Precision::F32)).unwrap();
        let before = logprobs(&tuned, &rows);
        for step in 1..=6 {
            grpo::step(&mut tuned, &batch(step), "batch", &fast, 0).unwrap();
            grpo::step(&mut adapted, &batch(step), "batch", &fast, 0).unwrap();
        }
        adapted.export(&at.join("merged"), &at, &whole(Precision::F32)).unwrap();
        adapted
            .export(
                &at.join("adapter"),
                &at.join("base"),
                &options(Form::Adapter, Precision::F32, 1),
            )
            .unwrap();
        tuned.export(&at.join("halves"), &at, &whole(Precision::Bf16)).unwrap();
        // The file has rounded values.
        let rounded = Config::read(&at.join("halves")).unwrap();
        let source = Source::open(&at.join("halves"), &rounded).unwrap();
        let rounded = Sharded::read(rounded, alone(), &source).unwrap();
        let trained = logprobs(&adapted, &rows);
        let written = json!({
            "rows": rows.iter().map(|row| &row.tokens).collect::<Vec<_>>(),
            "logprobs": {"base": before, "merged": trained, "adapter": trained, "halves": logprobs(&rounded, &rows)}
        });
        std::fs::write(at.join("rows.json"), written.to_string()).unwrap();
    }
}
