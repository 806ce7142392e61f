//! Sampling settings: converts those of the spec to those of records and engines, and names of engines to the spec's.

use grpo_crds::grpo_run;
use grpo_engine_protocol::Penalties;
use grpo_records::settings::Sampling;

/// The settings in records.
pub fn of(spec: &grpo_run::Sampling) -> Sampling {
    Sampling {
        temperature: spec.temperature,
        top_p: spec.top_p,
        top_k: i64::from(spec.top_k),
        max_tokens_per_call: spec.max_tokens_per_call,
        penalties: penalties(spec),
    }
}

/// The settings that change the distribution beyond temperature, top-p and top-k.
pub fn penalties(spec: &grpo_run::Sampling) -> Penalties {
    Penalties {
        min_p: spec.min_p,
        presence_penalty: spec.presence_penalty,
        frequency_penalty: spec.frequency_penalty,
        repetition_penalty: spec.repetition_penalty,
    }
}

/// The field of `rollout.sampling` for a setting that a request to an engine names.
pub fn field_of(setting: &str) -> &str {
    match setting {
        "top_p" => "topP",
        "top_k" => "topK",
        "min_p" => "minP",
        "presence_penalty" => "presencePenalty",
        "frequency_penalty" => "frequencyPenalty",
        "repetition_penalty" => "repetitionPenalty",
        other => other,
    }
}

#[cfg(test)]
mod tests;
