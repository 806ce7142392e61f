use super::values::Kind;
use super::*;
use half::bf16;
use safetensors::Dtype;
use safetensors::tensor::{SafeTensors, TensorView, serialize};
use serde_json::{Value, json};

const QUERY: &str = "model.layers.0.self_attn.q_proj.weight";
const EMBEDDING: &str = "model.embed_tokens.weight";

fn view(dtype: Dtype, shape: &[usize], bytes: &[u8]) -> TensorView<'static> {
    let bytes: &'static [u8] = bytes.to_vec().leak();
    TensorView::new(dtype, shape.to_vec(), bytes).unwrap()
}

fn write(file: &Path, tensors: Vec<(&str, TensorView<'static>)>) {
    fs::write(file, serialize(tensors, None).unwrap()).unwrap();
}

/// A base model with a matrix of 2 outputs and 3 inputs, and its adapter of rank 1 with alpha 2.
struct Model {
    _dir: tempfile::TempDir,
    base: PathBuf,
    adapter: PathBuf,
    target: PathBuf,
}

fn model(kind: Kind, peft: Value) -> Model {
    let dir = tempfile::tempdir().unwrap();
    let [base, adapter, target] = ["base", "l1-v1", "l1-v1-merged"].map(|name| dir.path().join(name));
    fs::create_dir_all(&base).unwrap();
    fs::create_dir_all(&adapter).unwrap();
    let dtype = match kind {
        Kind::F32 => Dtype::F32,
        Kind::F16 => Dtype::F16,
        Kind::BF16 => Dtype::BF16,
    };
    let weight = values::encoded(kind, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let other = values::encoded(kind, &[0.5, 0.25]);
    write(
        &base.join("model-00001-of-00002.safetensors"),
        vec![(QUERY, view(dtype, &[2, 3], &weight))],
    );
    write(
        &base.join("model-00002-of-00002.safetensors"),
        vec![
            (EMBEDDING, view(dtype, &[2], &other)),
            ("ids", view(Dtype::I64, &[1], &7_i64.to_le_bytes())),
        ],
    );
    fs::write(base.join("config.json"), "{}").unwrap();
    fs::write(base.join("pytorch_model.bin"), "old").unwrap();
    let mut config =
        json!({"peft_type": "LORA", "r": 1, "lora_alpha": 2.0, "target_modules": ["q_proj"], "bias": "none"});
    config
        .as_object_mut()
        .unwrap()
        .append(peft.clone().as_object_mut().unwrap());
    fs::write(adapter.join(CONFIG), config.to_string()).unwrap();
    let name = |matrix: &str| format!("{PREFIX}model.layers.0.self_attn.q_proj.lora_{matrix}.weight");
    let [a, b] = [vec![1.0_f32, 0.5, -1.0], vec![1.0, 0.25]].map(|values| values::encoded(Kind::F32, &values));
    let tensors = [(name("A"), [1, 3], a), (name("B"), [2, 1], b)];
    let tensors = tensors
        .iter()
        .map(|(name, shape, bytes)| (name.as_str(), view(Dtype::F32, shape, bytes)));
    write(&adapter.join(ADAPTER), tensors.collect());
    Model {
        _dir: dir,
        base,
        adapter,
        target,
    }
}

fn merged(model: &Model) -> Result<(), String> {
    merge(&model.base, &model.adapter, &model.target).map_err(|error| error.to_string())
}

#[test]
fn the_adapters_product_is_added_in_the_bases_type_and_all_else_stays() {
    for kind in [Kind::F32, Kind::F16, Kind::BF16] {
        let model = model(kind, json!({}));
        let templates = model.base.join("additional_chat_templates");
        fs::create_dir(&templates).unwrap();
        fs::write(templates.join("tool_use.jinja"), "tools").unwrap();
        fs::write(templates.join("notes.bin"), "other").unwrap();
        merged(&model).unwrap();
        let file = |name: &str| fs::read(model.target.join(name)).unwrap();
        let first = file("model-00001-of-00002.safetensors");
        let found = SafeTensors::deserialize(&first).unwrap();
        let query = values::decoded(kind, found.tensor(QUERY).unwrap().data());
        // W + 2 B A
        assert_eq!(query, [3.0, 3.0, 1.0, 4.5, 5.25, 5.5], "{kind:?}");
        let base = |name: &str| fs::read(model.base.join(name)).unwrap();
        for name in [
            "model-00002-of-00002.safetensors",
            "config.json",
            "additional_chat_templates/tool_use.jinja",
        ] {
            assert_eq!(file(name), base(name));
        }
        assert!(!model.target.join("additional_chat_templates/notes.bin").exists());
        assert!(!model.target.join("pytorch_model.bin").exists());
        assert!(!crate::output::part(&model.target).exists());
    }
}

#[test]
fn the_sum_is_rounded_once() {
    let model = model(Kind::BF16, json!({"lora_alpha": 0.01}));
    merged(&model).unwrap();
    let bytes = fs::read(model.target.join("model-00001-of-00002.safetensors")).unwrap();
    let found = SafeTensors::deserialize(&bytes).unwrap();
    let query = values::decoded(Kind::BF16, found.tensor(QUERY).unwrap().data());
    let wanted = bf16::from_f32(1.0 + 0.01 * 1.0).to_f32();
    assert_eq!(query[0], wanted);
}

#[test]
fn what_does_not_belong_together_is_refused_and_leaves_no_folder() {
    let error = merged(&model(Kind::F32, json!({"use_rslora": true}))).unwrap_err();
    assert!(error.contains("use_rslora"), "{error}");
    let other = model(Kind::F32, json!({}));
    fs::remove_file(other.base.join("model-00001-of-00002.safetensors")).unwrap();
    let error = merged(&other).unwrap_err();
    assert!(
        error.contains(QUERY) && error.contains("is --base the model"),
        "{error}"
    );
    assert!(!other.target.exists());
    let wider = model(Kind::F32, json!({}));
    let weight = view(Dtype::F32, &[2, 4], &[0; 32]);
    write(
        &wider.base.join("model-00001-of-00002.safetensors"),
        vec![(QUERY, weight)],
    );
    let error = merged(&wider).unwrap_err();
    assert!(error.contains("its shape is [2, 4]"), "{error}");
    let empty = model(Kind::F32, json!({}));
    for number in [1, 2] {
        fs::remove_file(empty.base.join(format!("model-0000{number}-of-00002.safetensors"))).unwrap();
    }
    assert!(merged(&empty).unwrap_err().contains("has no file *.safetensors"));
    let cut = model(Kind::F32, json!({}));
    let file = cut.base.join("model-00002-of-00002.safetensors");
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    assert!(merged(&cut).unwrap_err().contains("it ends within"));
}

#[test]
fn a_folder_that_is_there_is_not_written_again() {
    let model = model(Kind::F32, json!({}));
    merged(&model).unwrap();
    let error = merged(&model).unwrap_err();
    assert!(error.contains("is there already"), "{error}");
}
