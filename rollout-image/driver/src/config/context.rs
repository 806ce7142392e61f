//! The longest context of a model: the one that its `config.json` allows, and the one that a run's engines take.
//!
//! Trainer and embedded engine have the rule of [`grpo_model::Config`]. vLLM and SGLang count YaRN by rules of their
//! own, and a request that is too long ends the run. So the default of a run is not above the length of its engine.

use crate::fault::TerminalFault;
use grpo_contracts::RunConfig;
use grpo_contracts::reason::Reason;
use grpo_crds::inference_pool::Engine;
use grpo_model::Config;
use std::path::Path;

/// Numbers of positions of one model, by reader.
struct Positions {
    /// `max_position_embeddings` as it is written.
    stated: usize,
    /// By trainer and embedded engine. For a model that they do not compute: as it is written.
    longest: usize,
    /// By vLLM without `--max-model-len`. With YaRN it may be less than is stated.
    vllm: usize,
}

impl Positions {
    fn read(model: &Path) -> Result<Self, TerminalFault> {
        let stated = stated(model)?;
        let known = Config::read(model).ok();
        Ok(Self {
            stated,
            longest: known.as_ref().map_or(stated, |config| config.max_position_embeddings),
            vllm: known
                .and_then(|config| config.yarn)
                .map_or(stated, |yarn| yarn.positions()),
        })
    }
}

/// The longest context that the model's config allows, in tokens. It is the trainer's number for each model that the
/// trainer computes.
pub fn longest_context(model: &Path) -> Result<usize, TerminalFault> {
    Ok(Positions::read(model)?.longest)
}

/// The context of a run whose spec gives no limit, in tokens.
pub(super) fn default_context(config: &RunConfig) -> Result<usize, TerminalFault> {
    let positions = Positions::read(Path::new(&config.model_path))?;
    let pool = config.spec.inference.pool.as_ref();
    let taken = match pool.map(|pool| &pool.engine) {
        Some(Engine { embedded: Some(_), .. }) => positions.longest,
        Some(Engine { vllm: Some(vllm), .. }) => vllm.max_model_len.map_or(positions.vllm, |length| length as usize),
        // Without `--context-length` SGLang does not count a YaRN whose original number is in the config.
        Some(Engine {
            sglang: Some(sglang), ..
        }) => sglang.context_length.map_or(positions.stated, |length| length as usize),
        // An external server, or a pool that the run refers to: its engine is not in the spec.
        _ => positions.stated.min(positions.vllm),
    };
    Ok(positions.longest.min(taken))
}

fn stated(model: &Path) -> Result<usize, TerminalFault> {
    let file = model.join("config.json");
    let read = std::fs::read(&file)
        .ok()
        .and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok());
    // A model that also reads images has the fields of its language model in `text_config`.
    read.and_then(|config| {
        let of = |part: &serde_json::Value| part["max_position_embeddings"].as_u64();
        of(&config).or_else(|| of(&config["text_config"]))
    })
    .map(|length| length as usize)
    .ok_or_else(|| {
        TerminalFault::new(
            Reason::ContextLengthUnknown,
            format!(
                "{} has no max_position_embeddings, also not in text_config; set agent.limits.contextTokens",
                file.display()
            ),
        )
    })
}

#[cfg(test)]
mod tests;
