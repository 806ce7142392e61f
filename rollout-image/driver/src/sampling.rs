//! Sampling settings: converts those of the spec to those of records and engines.

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
