//! The demo's model, unchanged or with another chat template.

use serde_json::Value;
use std::path::PathBuf;

pub fn model() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../demo/model")
}

/// The demo's model with another chat template.
pub fn model_with(template: &str, folder: &std::path::Path) -> PathBuf {
    let with = folder.join("model-with-template");
    std::fs::create_dir(&with).unwrap();
    for file in ["tokenizer.json", "config.json", "generation_config.json"] {
        std::fs::copy(model().join(file), with.join(file)).unwrap();
    }
    let config = std::fs::read(model().join("tokenizer_config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["chat_template"] = template.into();
    std::fs::write(with.join("tokenizer_config.json"), config.to_string()).unwrap();
    with
}
