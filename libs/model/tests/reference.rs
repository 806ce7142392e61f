//! The model against transformers and PEFT: logits, loss, gradients and greedy continuations that `golden/make.py`
//! wrote.

#![cfg(feature = "torch")]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use grpo_model::adapter;
use grpo_model::layout::Layout;
use grpo_model::model::{self, Block, Pass};
use grpo_model::rotation::Rope;
use grpo_model::weights::{self, Weights};
use grpo_model::{Config, Family};
use safetensors::SafeTensors;
use serde::Deserialize;
use tch::{Kind, Tensor};

/// Both compute in fp32; they differ in the order of summation.
const TOLERANCE: f64 = 1e-5;

/// The bound for any geometry: some of many have more cancellation.
const BAR: f64 = 1e-4;

#[derive(Deserialize)]
struct Numbers {
    loss: f64,
    greedy: Vec<i64>,
}

/// A model, its leaves by unit, and the expected results.
struct Case {
    name: String,
    config: Config,
    names: Vec<Vec<String>>,
    units: Vec<Vec<Tensor>>,
    rope: Rope,
    expected: BTreeMap<String, Tensor>,
    numbers: Numbers,
}

/// The largest measured differences.
#[derive(Debug, Default)]
struct Apart {
    logits: f64,
    loss: f64,
    gradients: f64,
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// Every model in a folder, then every adapter of a model.
fn cases(folder: &Path) -> Vec<Case> {
    let mut dirs: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("config.json").exists())
        .collect();
    dirs.sort();
    let adapters = dirs.iter().filter(|dir| dir.join("adapter").exists());
    let adapters: Vec<Case> = adapters.map(|dir| Case::read(dir, true)).collect();
    dirs.iter().map(|dir| Case::read(dir, false)).chain(adapters).collect()
}

fn norm(x: &Tensor) -> f64 {
    x.to_kind(Kind::Double)
        .square()
        .sum(Kind::Double)
        .sqrt()
        .double_value(&[])
}

/// Norm of the difference divided by the norm of the expected value.
fn apart(found: &Tensor, wanted: &Tensor) -> f64 {
    norm(&(found - wanted)) / norm(wanted)
}

impl Case {
    fn read(dir: &Path, adapted: bool) -> Self {
        let mut config = Config::read(dir).unwrap();
        let mut weights = weights::read(dir, &config).unwrap();
        let mut units = weights::units(&config);
        let mut from = dir.to_owned();
        if adapted {
            from = dir.join("adapter");
            let (lora, adapter) = adapter::read(&from, &config).unwrap();
            for (unit, adapter) in units.iter_mut().zip(adapter::units(&config, &lora)) {
                unit.tensors.extend(adapter.tensors);
            }
            weights.extend(adapter);
            config = config.with_lora(lora).unwrap();
        }
        let leaf = |name: &String, weights: &Weights| {
            let shape: Vec<i64> = weights[name].shape.iter().map(|n| *n as i64).collect();
            let trained = !adapted || name.contains("lora_");
            Tensor::from_slice(&weights[name].values)
                .view(shape.as_slice())
                .set_requires_grad(trained)
        };
        let names: Vec<Vec<String>> = units
            .iter()
            .map(|unit| unit.tensors.iter().map(|(name, _)| name.clone()).collect())
            .collect();
        Self {
            name: from.display().to_string(),
            units: names
                .iter()
                .map(|names| names.iter().map(|name| leaf(name, &weights)).collect())
                .collect(),
            rope: Rope::new(&config, config.max_position_embeddings as i64, Kind::Float),
            config,
            names,
            expected: read_expected(&from.join("expected.safetensors")),
            numbers: serde_json::from_slice(&std::fs::read(from.join("expected.json")).unwrap()).unwrap(),
        }
    }

    /// Logits `[b * t, vocabulary]`.
    fn logits(&self, ids: &Tensor) -> Tensor {
        let layout = Layout::rows(ids.size()[0], ids.size()[1]);
        let mut x = model::embed(&self.units[0][0], ids);
        for (layer, weights) in self.units[1..].iter().enumerate() {
            let block = Block { layer, weights };
            x = model::block(&self.config, &self.rope, &layout, block, &x, &mut Pass::default());
        }
        model::head(
            &self.config,
            &self.units[0],
            &x.reshape([-1, self.config.hidden_size as i64]),
        )
    }

    fn measure(&self, tolerance: f64) -> Apart {
        let ids = self.expected["ids"].to_kind(Kind::Int64);
        let (b, t, v) = (ids.size()[0], ids.size()[1], self.config.vocab_size as i64);
        let logits = self.logits(&ids).view([b, t, v]);
        let predictions = logits.narrow(1, 0, t - 1).reshape([-1, v]);
        let loss = predictions.cross_entropy_for_logits(&ids.narrow(1, 1, t - 1).reshape([-1]));
        loss.backward();
        let wanted = self.expected.iter().filter(|(key, _)| key.starts_with("gradient:"));
        let (count, largest) = wanted.fold((0, 0.0f64), |(n, most), (_, tensor)| (n + 1, most.max(norm(tensor))));
        let mut gradients: f64 = 0.0;
        let mut compared = 0;
        for (name, leaf) in self.names.iter().flatten().zip(self.units.iter().flatten()) {
            if let Some(wanted) = self.expected.get(&format!("gradient:{name}")) {
                let grad = leaf.grad();
                let grad = if grad.defined() { grad } else { leaf.zeros_like() };
                // A gradient that is only rounding error compared with the others (the router's, if its choice has no
                // effect) is measured relative to those.
                let size = norm(wanted);
                let size = if size > 1e-6 * largest { size } else { largest };
                let distance = norm(&(grad - wanted)) / size;
                let share = size / largest;
                assert!(
                    distance < tolerance,
                    "{}: gradient of {name}: {distance:e}, being {share:e} of the largest",
                    self.name
                );
                (gradients, compared) = (gradients.max(distance), compared + 1);
            }
        }
        assert_eq!(compared, count, "{}: gradients that were compared", self.name);
        Apart {
            logits: apart(&logits, &self.expected["logits"]),
            loss: (loss.double_value(&[]) - self.numbers.loss).abs() / self.numbers.loss,
            gradients,
        }
    }

    fn continued(&self) -> Vec<i64> {
        let wanted = &self.numbers.greedy;
        let mut row = wanted[..6].to_vec();
        while row.len() < wanted.len() {
            let logits = tch::no_grad(|| self.logits(&Tensor::from_slice(&row).unsqueeze(0)));
            row.push(logits.get(row.len() as i64 - 1).argmax(0, false).int64_value(&[]));
        }
        row
    }
}

fn read_expected(path: &Path) -> BTreeMap<String, Tensor> {
    let bytes = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let read = |view: safetensors::tensor::TensorView<'_>| {
        let words = view.data().chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
        let flat = match view.dtype() {
            safetensors::Dtype::I32 => Tensor::from_slice(&words.map(i32::from_le_bytes).collect::<Vec<_>>()),
            _ => Tensor::from_slice(&words.map(f32::from_le_bytes).collect::<Vec<_>>()),
        };
        let shape: Vec<i64> = view.shape().iter().map(|n| *n as i64).collect();
        flat.view(shape.as_slice())
    };
    tensors
        .tensors()
        .into_iter()
        .map(|(name, view)| (name, read(view)))
        .collect()
}

fn agree(cases: &[Case], tolerance: f64) {
    let mut largest = Apart::default();
    for case in cases {
        let found = case.measure(tolerance);
        let worst = found.logits.max(found.loss).max(found.gradients);
        assert!(worst < tolerance, "{}: {found:?}", case.name);
        assert_eq!(case.continued(), case.numbers.greedy, "{}", case.name);
        largest.logits = largest.logits.max(found.logits);
        largest.loss = largest.loss.max(found.loss);
        largest.gradients = largest.gradients.max(found.gradients);
    }
    let greedy: usize = cases.iter().map(|case| case.numbers.greedy.len() - 6).sum();
    println!(
        "{} models, {greedy} greedy tokens, largest relative distances: {largest:?}",
        cases.len()
    );
}

#[test]
fn every_family_computes_what_transformers_does() {
    let cases = cases(&golden());
    for family in Family::ALL {
        assert!(
            cases.iter().filter(|case| case.config.family == family).count() >= 2,
            "{family:?}"
        );
    }
    assert!(cases.iter().any(|case| case.config.lora.is_some()));
    agree(&cases, TOLERANCE);
}

/// `make check-exports` writes these models and sets their folder.
#[test]
#[ignore = "needs models of random geometry, see make check-exports"]
fn models_of_random_geometry_compute_what_transformers_does() {
    let folder = std::env::var("GRPO_REFERENCE_MODELS").unwrap();
    let cases = cases(Path::new(&folder));
    assert!(cases.len() > 10);
    agree(&cases, BAR);
}

fn mixture() -> Case {
    Case::read(&golden().join("moe"), false)
}

/// Output, gradient of the input and of every weight, and the experts, of one block.
fn one_block(case: &Case, x: &Tensor, experts: &mut Option<Tensor>) -> Vec<Tensor> {
    let weights: Vec<Tensor> = case.units[1]
        .iter()
        .map(|t| t.detach().copy().set_requires_grad(true))
        .collect();
    let x = x.detach().copy().set_requires_grad(true);
    let layout = Layout::rows(x.size()[0], x.size()[1]);
    let block = Block {
        layer: 0,
        weights: &weights,
    };
    let mut pass = Pass {
        experts: experts.take(),
        ..Pass::default()
    };
    let y = model::block(&case.config, &case.rope, &layout, block, &x, &mut pass);
    *experts = pass.experts;
    y.square().sum(Kind::Float).backward();
    let grads = weights.iter().map(|t| t.grad()).filter(|grad| grad.defined());
    [y.detach(), x.grad()].into_iter().chain(grads).collect()
}

#[test]
fn experts_that_were_recorded_give_the_bits_of_those_that_were_chosen() {
    let case = mixture();
    tch::manual_seed(3);
    let x = Tensor::randn([3, 11, 16], (Kind::Float, tch::Device::Cpu));
    let mut chosen = None;
    let first = one_block(&case, &x, &mut chosen);
    assert_eq!(chosen.as_ref().unwrap().size(), [3, 11, 2]);
    for _ in 0..5 {
        let again = one_block(&case, &x, &mut chosen.as_ref().map(Tensor::copy));
        assert_eq!(again.len(), first.len());
        assert!(first.iter().zip(&again).all(|(a, b)| a == b));
    }
}

#[test]
fn a_router_that_is_told_the_experts_uses_them_and_reports_their_load() {
    let case = mixture();
    tch::manual_seed(4);
    let x = Tensor::randn([2, 9, 16], (Kind::Float, tch::Device::Cpu));
    let mut chosen = None;
    let free = one_block(&case, &x, &mut chosen);
    let geometry = case.config.experts_of(0).unwrap();
    let loads = model::loads(geometry, chosen.as_ref().unwrap());
    assert_eq!((loads.len(), loads.iter().sum::<i64>()), (5, 36));
    assert!(loads.iter().filter(|load| **load > 0).count() > 2, "{loads:?}");

    // Experts 0 and 3 for every token: the others get no gradient.
    let given = Tensor::from_slice(&[0i64, 3])
        .view([1, 1, 2])
        .expand([2, 9, 2], false)
        .contiguous();
    let forced = one_block(&case, &x, &mut Some(given.copy()));
    assert_eq!(model::loads(geometry, &given), [18, 0, 0, 18, 0]);
    assert!(forced[0] != free[0]);
    // Output and input's gradient, eight tensors of attention and norms, the router, and three of each of two experts.
    assert_eq!(forced.len(), 2 + 8 + 1 + 6);
}

#[test]
fn rows_padded_on_the_right_give_what_they_give_alone() {
    for case in cases(&golden()) {
        let ids = case.expected["ids"].to_kind(Kind::Int64);
        let short = ids.narrow(1, 0, 13);
        let padded = tch::no_grad(|| case.logits(&Tensor::cat(&[&short, &short.zeros_like()], 1)));
        let alone = tch::no_grad(|| case.logits(&short));
        let v = case.config.vocab_size as i64;
        let real = padded.view([2, 26, v]).narrow(1, 0, 13).reshape([-1, v]);
        assert!(apart(&real, &alone) < TOLERANCE, "{}", case.name);
    }
}
