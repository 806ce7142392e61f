//! The tensors of a model's adapters: their names and shapes, and PEFT's directory format.

use std::path::Path;

use crate::config::Config;
use crate::error::ModelError;
use crate::lora::{Linear, Lora};
use crate::weights::{Array, Source, Unit, Weights};

/// Reads an adapter's directory: `adapter_config.json` and `adapter_model.safetensors`. A setting that this crate would
/// compute differently is refused by name.
pub fn read(dir: &Path, config: &Config) -> Result<(Lora, Weights), ModelError> {
    let file = dir.join("adapter_config.json");
    let path = file.display().to_string();
    let bytes = std::fs::read(&file).map_err(|source| ModelError::Read {
        path: path.clone(),
        source,
    })?;
    let value = serde_json::from_slice(&bytes).map_err(|e| ModelError::Malformed {
        path: path.clone(),
        message: e.to_string(),
    })?;
    let lora = Lora::from_peft(value, &path)?;
    lora.check(config.experts.is_some())?;
    let tensors = || units(config, &lora).into_iter().flat_map(|unit| unit.tensors);
    let source = Source::of_tensors(dir, "adapter_model", tensors(), false)?;
    let weights = tensors()
        .map(|(name, shape)| {
            let values = source.read_finite(&name, 0..shape.iter().product())?;
            Ok((name, Array { shape, values }))
        })
        .collect::<Result<_, ModelError>>()?;
    Ok((lora, weights))
}

/// The adapters' tensors, grouped like the model's units: none for the embedding, A and B of every target for a layer.
pub fn units(config: &Config, lora: &Lora) -> Vec<Unit> {
    let layer = |layer: usize| Unit {
        name: format!("adapter of layer {layer}"),
        tensors: lora
            .targets()
            .iter()
            .flat_map(|target| {
                let [outputs, inputs] = config.linear_shape(*target);
                [
                    (tensor(layer, *target, "A"), vec![lora.rank, inputs]),
                    (tensor(layer, *target, "B"), vec![outputs, lora.rank]),
                ]
            })
            .collect(),
    };
    let embedding = Unit {
        name: "adapter of embedding".to_owned(),
        tensors: Vec::new(),
    };
    std::iter::once(embedding)
        .chain((0..config.num_hidden_layers).map(layer))
        .collect()
}

/// PEFT's name of one matrix of an adapter.
fn tensor(layer: usize, target: Linear, matrix: &str) -> String {
    format!(
        "base_model.model.model.layers.{layer}.{}.lora_{matrix}.weight",
        target.path()
    )
}

#[cfg(test)]
mod tests;
