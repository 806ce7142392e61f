//! Checksums, and files that are truncated, damaged or from another model.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::export::Export;
use super::*;

fn weights() -> Weights {
    let array = |shape: &[usize], values: &[f32]| Array {
        shape: shape.to_vec(),
        values: values.to_vec(),
    };
    Weights::from([
        ("a".to_owned(), array(&[2, 2], &[1.0, -2.0, 3.5, 0.0])),
        ("b".to_owned(), array(&[1], &[7.0])),
    ])
}

/// A folder that is removed with its test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("grpo-weights-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn config() -> Config {
    let value = json!({
        "model_type": "qwen2", "vocab_size": 7, "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
        "max_position_embeddings": 64, "tie_word_embeddings": true, "torch_dtype": "float32"
    });
    Config::parse(value.to_string().as_bytes(), "config.json").unwrap()
}

/// A model whose values identify their tensors; small integers, which 16 bits hold exactly.
fn model() -> Weights {
    let tensors = units(&config()).into_iter().flat_map(|unit| unit.tensors);
    tensors
        .enumerate()
        .map(|(at, (name, shape))| {
            let numel: usize = shape.iter().product();
            let values = (0..numel).map(|i| (at + i) as f32).collect();
            (name, Array { shape, values })
        })
        .collect()
}

/// Writes the model to `<folder>/model`.
fn written(folder: &Folder, precision: Precision, file_bytes: u64) -> PathBuf {
    fs::write(folder.at("config.json"), json!({"torch_dtype": "float32"}).to_string()).unwrap();
    let (target, units) = (folder.at("model"), units(&config()));
    let mut export = Export::model(&target, &folder.0, &units, precision, file_bytes).unwrap();
    let model = model();
    for (name, _) in units.iter().flat_map(|unit| &unit.tensors) {
        export.tensor(name, &model[name].values).unwrap();
    }
    export.finish().unwrap();
    target
}

/// Writes a file of tensors with this header.
fn file(path: &Path, header: &str, bytes: usize) {
    let head = (header.len() as u64).to_le_bytes();
    fs::write(path, [&head, header.as_bytes(), &vec![0; bytes]].concat()).unwrap();
}

#[test]
fn the_checksum_speaks_of_values_shapes_and_names() {
    let whole = checksum(&weights());
    let changes: [fn(&mut Weights); 3] = [
        |w| w.get_mut("a").unwrap().values[0] = 1.0000001,
        |w| w.get_mut("a").unwrap().shape = vec![4],
        |w| {
            let b = w.remove("b").unwrap();
            w.insert("c".to_owned(), b);
        },
    ];
    for change in changes {
        let mut changed = weights();
        change(&mut changed);
        assert_ne!(checksum(&changed), whole);
    }
    assert_eq!(checksum(&weights()), whole);
}

#[test]
fn the_checksum_of_tensors_that_come_in_another_order_is_the_same() {
    let mut digest = TensorsDigest::default();
    for (name, array) in weights().iter().rev() {
        digest.add(name, &array.shape, &array.values);
    }
    assert_eq!(digest.finish(), checksum(&weights()));
}

#[test]
fn the_checksum_of_tensors_that_come_in_parts_is_the_same() {
    for part in 1..4 {
        let mut digest = TensorsDigest::default();
        for (name, array) in weights() {
            for values in array.values.chunks(part) {
                digest.add(&name, &array.shape, values);
            }
        }
        assert_eq!(digest.finish(), checksum(&weights()));
    }
}

#[test]
fn values_are_rounded_as_the_crate_half_rounds_them() {
    let low = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff];
    let all = (0..=u32::from(u16::MAX)).flat_map(|high| low.map(|low| f32::from_bits(high << 16 | low)));
    let values: Vec<f32> = all.collect();
    let halves: Vec<half::bf16> = values.iter().map(|value| half::bf16::from_f32(*value)).collect();
    let bytes: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
    assert!(Precision::Bf16.encoded(&values) == bytes);
    // NaNs too: as bytes, they can be compared.
    let (mut read, mut wanted) = (Vec::new(), Vec::new());
    Precision::Bf16.encode_as_read(&values, &mut read);
    wanted.extend(halves.iter().flat_map(|half| half.to_f32().to_le_bytes()));
    assert!(read == wanted);
}

#[test]
fn the_checksum_of_a_precision_is_that_of_the_values_a_reader_gets() {
    let values = [1.0, -1.003_906_3, 1e-40, 3.200_000_3];
    let sum = |digest: TensorsDigest, values: &[f32]| {
        let mut digest = digest;
        digest.add("a", &[4], values);
        digest.finish()
    };
    let read = values.map(|value| half::bf16::from_f32(value).to_f32());
    let of_bf16 = sum(TensorsDigest::of(Precision::Bf16), &values);
    assert_eq!(of_bf16, sum(TensorsDigest::default(), &read));
    assert_ne!(of_bf16, sum(TensorsDigest::default(), &values));
}

#[test]
fn what_is_written_reads_back_the_same_whatever_the_files() {
    for (precision, file_bytes, files) in [
        (Precision::F32, u64::MAX, 1),
        (Precision::Bf16, u64::MAX, 1),
        (Precision::F32, 300, 5),
        (Precision::Bf16, 1, 26),
    ] {
        let folder = Folder::new(&format!("whole-{files}-{precision:?}"));
        let dir = written(&folder, precision, file_bytes);
        assert_eq!(read(&dir, &config()).unwrap(), model());
        let found = fs::read_dir(&dir).unwrap().filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_string_lossy().ends_with(".safetensors")
        });
        assert_eq!(found.count(), files);
        let stated: serde_json::Value = serde_json::from_slice(&fs::read(dir.join("config.json")).unwrap()).unwrap();
        assert_eq!(stated["torch_dtype"], precision_name(precision));
    }
}

fn precision_name(precision: Precision) -> &'static str {
    match precision {
        Precision::F32 => "float32",
        Precision::Bf16 => "bfloat16",
    }
}

#[test]
fn to_safetensors_is_read_as_any_other_file() {
    let folder = Folder::new("bytes");
    fs::write(folder.at("model.safetensors"), to_safetensors(&model()).unwrap()).unwrap();
    assert_eq!(read(&folder.0, &config()).unwrap(), model());
}

#[test]
fn any_range_is_what_the_whole_holds_there() {
    let folder = Folder::new("ranges");
    let source = Source::open(&written(&folder, Precision::Bf16, 300), &config()).unwrap();
    for (name, array) in model() {
        let n = array.values.len();
        for (from, to) in [(0, n), (n / 2, n), (n / 3, n / 2), (n, n)] {
            assert_eq!(source.read(&name, from..to).unwrap(), array.values[from..to]);
        }
        assert!(matches!(
            source.read(&name, 0..n + 1),
            Err(ModelError::DamagedTensor { .. })
        ));
    }
}

#[test]
fn halves_are_read_as_they_are() {
    let folder = Folder::new("halves");
    let tensors = [("x".to_owned(), vec![3])];
    let header = r#"{"x":{"dtype":"F16","shape":[3],"data_offsets":[0,6]}}"#;
    let values = [0x3c00u16, 0xc100, 0x0001];
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let head = (header.len() as u64).to_le_bytes();
    fs::write(
        folder.at("model.safetensors"),
        [&head, header.as_bytes(), &bytes].concat(),
    )
    .unwrap();
    let source = Source::of_tensors(&folder.0, "model", tensors.into_iter(), false).unwrap();
    assert_eq!(source.read("x", 0..3).unwrap(), [1.0, -2.5, 2f32.powi(-24)]);
}

#[test]
fn a_file_that_is_cut_anywhere_is_refused_by_name() {
    let folder = Folder::new("cut");
    let dir = written(&folder, Precision::F32, u64::MAX);
    let path = dir.join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(61).chain([7, 8, whole.len() - 1]) {
        fs::write(&path, &whole[..at]).unwrap();
        let message = read(&dir, &config()).unwrap_err().to_string();
        assert!(message.contains("model.safetensors"), "{at}: {message}");
        let values = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
        assert!(at < values || message.contains("tensor model."), "{at}: {message}");
    }
    fs::write(&path, [&whole[..], b"more"].concat()).unwrap();
    assert!(read(&dir, &config()).unwrap_err().to_string().contains("4 bytes"));
}

#[test]
fn a_file_that_is_cut_after_it_was_opened_is_refused_by_name() {
    let folder = Folder::new("cut-later");
    let dir = written(&folder, Precision::F32, u64::MAX);
    let source = Source::open(&dir, &config()).unwrap();
    let path = dir.join("model.safetensors");
    let size = fs::metadata(&path).unwrap().len();
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(size - 30)
        .unwrap();
    let last = "model.layers.1.mlp.down_proj.weight";
    let message = source.read(last, 0..24).unwrap_err().to_string();
    assert!(
        message.contains(last) && message.contains("model.safetensors"),
        "{message}"
    );
}

#[test]
fn headers_that_do_not_add_up_are_refused_by_file_and_tensor() {
    let folder = Folder::new("headers");
    let path = folder.at("model.safetensors");
    let entry = |name: &str, shape: &str, from: usize, to: usize| {
        format!(r#""{name}":{{"dtype":"F32","shape":[{shape}],"data_offsets":[{from},{to}]}}"#)
    };
    let cases = [
        (format!("{{{}}}", entry("x", "2", 0, 12)), 12, "tensor x"),
        (format!("{{{}}}", entry("x", "2", 8, 0)), 8, "tensor x"),
        (format!("{{{}}}", entry("x", "2", 4, 12)), 12, "tensor x"),
        (
            format!("{{{}}}", entry("x", "9223372036854775807,9", 0, 8)),
            8,
            "tensor x",
        ),
        (
            format!("{{{},{}}}", entry("x", "2", 0, 8), entry("y", "2", 4, 12)),
            12,
            "tensor y",
        ),
        (
            format!("{{{},{}}}", entry("x", "2", 0, 8), entry("x", "2", 8, 16)),
            16,
            "tensor x",
        ),
        (
            format!("{{{}}}", entry("x", "2", 0, 8).replace("F32", "F99")),
            8,
            "header",
        ),
        ("[1]".to_owned(), 0, "header"),
        ("{".to_owned(), 0, "header"),
    ];
    for (header, bytes, word) in cases {
        file(&path, &header, bytes);
        let wanted = [("x".to_owned(), vec![2])].into_iter();
        let message = Source::of_tensors(&folder.0, "model", wanted, false)
            .err()
            .unwrap()
            .to_string();
        assert!(
            message.contains(word) && message.contains("model.safetensors"),
            "{header}: {message}"
        );
    }
}

#[test]
fn tensors_of_another_model_are_refused_by_file_and_name() {
    let folder = Folder::new("others");
    let changed = |change: &dyn Fn(&mut Weights)| {
        let mut weights = model();
        change(&mut weights);
        fs::write(folder.at("model.safetensors"), to_safetensors(&weights).unwrap()).unwrap();
        read(&folder.0, &config())
    };
    let (bias, extra) = (
        "model.layers.1.self_attn.k_proj.bias",
        "model.layers.1.self_attn.o_proj.bias",
    );
    let one = |numel: usize| Array {
        shape: vec![numel],
        values: vec![0.0; numel],
    };
    let missing = changed(&|w| drop(w.remove(bias))).unwrap_err();
    assert!(
        matches!(&missing, ModelError::MissingTensor { name, .. } if name == bias),
        "{missing}"
    );
    let shape = changed(&|w| drop(w.insert(bias.to_owned(), one(3)))).unwrap_err();
    assert!(
        matches!(&shape, ModelError::Shape { name, .. } if name == bias),
        "{shape}"
    );
    let unexpected = changed(&|w| drop(w.insert(extra.to_owned(), one(4)))).unwrap_err();
    assert!(
        matches!(&unexpected, ModelError::UnexpectedTensor { name, .. } if name == extra),
        "{unexpected}"
    );
    for error in [missing, shape, unexpected] {
        assert!(error.to_string().contains("model.safetensors"), "{error}");
    }
    // Some writers leave a copy of the tied embedding; another head would change the model.
    let head = |change: fn(&mut Array)| {
        changed(&|w| {
            let mut head = w[EMBEDDING].clone();
            change(&mut head);
            w.insert(HEAD.to_owned(), head);
        })
    };
    head(|_| {}).unwrap();
    let changes: [fn(&mut Array); 2] = [|head| head.values[27] += 1.0, |head| head.shape.reverse()];
    for change in changes {
        let error = head(change).unwrap_err().to_string();
        assert!(error.contains("tie_word_embeddings") && error.contains(HEAD), "{error}");
    }
}

#[test]
fn other_kinds_of_values_are_refused_by_name() {
    let folder = Folder::new("kinds");
    let header = r#"{"x":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}}"#;
    file(&folder.at("model.safetensors"), header, 8);
    let wanted = [("x".to_owned(), vec![2])].into_iter();
    let error = Source::of_tensors(&folder.0, "model", wanted, false).err().unwrap();
    assert!(
        matches!(&error, ModelError::Kind { name, found, .. } if name == "x" && found == "I32"),
        "{error}"
    );
}

#[test]
fn an_index_that_does_not_fit_its_files_is_refused_by_name() {
    let folder = Folder::new("index");
    let dir = written(&folder, Precision::F32, 300);
    let path = dir.join("model.safetensors.index.json");
    let good: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let norm = "model.norm.weight";
    let other = "model.layers.1.mlp.down_proj.weight";
    let refused = |value: String| {
        fs::write(&path, value).unwrap();
        read(&dir, &config()).unwrap_err().to_string()
    };
    let with = |file: serde_json::Value| {
        let mut value = good.clone();
        value["weight_map"][norm] = file;
        value.to_string()
    };
    assert!(refused(with(good["weight_map"][other].clone())).contains(norm));
    assert!(refused(with("gone.safetensors".into())).contains("gone.safetensors"));
    assert!(refused(with("../model.safetensors".into())).contains(norm));
    assert!(refused("{}".to_owned()).contains("weight_map"));
    let twice = good
        .to_string()
        .replacen(&format!("\"{other}\""), &format!("\"{norm}\""), 1);
    assert!(refused(twice).contains(norm));

    // The same tensor in two files; the index names one of them.
    fs::write(&path, good.to_string()).unwrap();
    let names = |at: usize| dir.join(format!("model-{at:05}-of-00005.safetensors"));
    fs::copy(names(1), names(2)).unwrap();
    let error = read(&dir, &config()).unwrap_err();
    assert!(matches!(error, ModelError::DuplicateTensor { .. }), "{error}");
}

#[test]
fn an_export_has_the_chat_templates_with_names() {
    let folder = Folder::new("templates");
    let named = folder.at("additional_chat_templates");
    fs::create_dir(&named).unwrap();
    fs::write(named.join("tool_use.jinja"), "tools").unwrap();
    fs::write(named.join("notes.bin"), "other").unwrap();
    fs::create_dir(named.join("folder.jinja")).unwrap();
    let dir = written(&folder, Precision::F32, u64::MAX).join("additional_chat_templates");
    let there: Vec<_> = fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(there, ["tool_use.jinja"]);
    assert_eq!(fs::read_to_string(dir.join("tool_use.jinja")).unwrap(), "tools");
}

#[test]
fn an_export_takes_every_tensor_once_in_order_or_leaves_nothing() {
    let folder = Folder::new("order");
    fs::write(folder.at("config.json"), "{}").unwrap();
    let (target, units) = (folder.at("model"), units(&config()));
    let begin = || Export::model(&target, &folder.0, &units, Precision::F32, u64::MAX).unwrap();
    let first = units[0].tensors[0].0.as_str();
    let mut export = begin();
    assert!(export.tensor(units[1].tensors[0].0.as_str(), &[0.0; 4]).is_err());
    drop(export);
    let mut export = begin();
    assert!(export.tensor(first, &[0.0; 3]).is_err());
    drop(export);
    let mut export = begin();
    export.tensor(first, &[0.0; 28]).unwrap();
    let error = export.finish().unwrap_err();
    assert!(error.to_string().contains(&units[0].tensors[1].0), "{error}");
    let left: Vec<_> = fs::read_dir(&folder.0)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["config.json"]);
    fs::create_dir(&target).unwrap();
    assert!(Export::model(&target, &folder.0, &units, Precision::F32, 1).is_err());
}
