//! Checks an engine's answer.

use super::Ask;
use grpo_engine_protocol::{CompletionChoice, CompletionResponse, FinishReason};

/// A valid answer of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub ids: Vec<u32>,
    pub logprobs: Vec<f32>,
    pub finish: FinishReason,
    /// Experts of the tokens from `from` on, except the last, in the store's encoding; `None` if not requested.
    pub experts: Option<Experts>,
    /// The server returned text: the ids are the chat template's, and the logprobs are 0.
    pub text_only: bool,
}

/// Experts of consecutive tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Experts {
    pub from: usize,
    pub to: usize,
    pub bytes: Vec<u8>,
}

/// Why the driver rejects an answer.
#[derive(Debug)]
pub enum Wrong {
    /// A new attempt may give a valid answer.
    Answer(String),
    /// Every answer of this engine will have the same defect.
    Engine(String),
}

impl From<String> for Wrong {
    fn from(why: String) -> Self {
        Self::Answer(why)
    }
}

/// Accepts an answer only with a logprob for each id, from the requested version, and with experts if they were
/// requested.
pub fn checked(answer: CompletionResponse, version: &str, ask: &Ask<'_>) -> Result<Sample, Wrong> {
    let choice = choice(answer, version, ask.max_tokens)?;
    let computed = ask.prompt.len() + choice.token_ids.len() - 1;
    let experts = match (&ask.experts, &choice.routed_experts) {
        (None, _) => None,
        (Some(_), None) => return Err("no experts though they were asked for".to_owned().into()),
        (Some((_, from)), Some(said)) if said.from != *from || said.from + said.tokens != computed => {
            return Err(format!(
                "experts of {} tokens from {} on, of {from} to {computed} they were asked for",
                said.tokens, said.from
            )
            .into());
        }
        (Some((mixture, from)), Some(said)) => Some(Experts {
            from: *from,
            to: computed,
            bytes: mixture
                .to_keep(said)
                .map_err(|fault| Wrong::Engine(fault.to_string()))?,
        }),
    };
    Ok(Sample {
        ids: choice.token_ids,
        logprobs: choice.logprobs.map(|said| said.token_logprobs).unwrap_or_default(),
        finish: choice.finish_reason,
        experts,
        text_only: false,
    })
}

fn choice(mut answer: CompletionResponse, version: &str, max_tokens: u32) -> Result<CompletionChoice, String> {
    let Some(choice) = answer.choices.pop().filter(|_| answer.choices.is_empty()) else {
        return Err("not exactly one choice".into());
    };
    let logprobs = choice.logprobs.as_ref().map_or(&[][..], |said| &said.token_logprobs);
    if choice.finish_reason == FinishReason::Abort {
        return Err("the engine gave the request up".into());
    }
    if choice.weights_version != version {
        return Err(format!(
            "sampled by {} though {version} was asked for",
            choice.weights_version
        ));
    }
    if choice.token_ids.is_empty() || choice.token_ids.len() > max_tokens as usize {
        return Err(format!(
            "{} ids where 1 to {max_tokens} were asked for",
            choice.token_ids.len()
        ));
    }
    if logprobs.len() != choice.token_ids.len() {
        return Err(format!(
            "{} ids but {} logprobs",
            choice.token_ids.len(),
            logprobs.len()
        ));
    }
    if logprobs.iter().any(|l| !l.is_finite() || *l > 0.0) {
        return Err("a logprob is positive or not finite".into());
    }
    Ok(choice)
}

#[cfg(test)]
mod tests;
