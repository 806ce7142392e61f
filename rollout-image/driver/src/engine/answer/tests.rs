use super::*;
use crate::experts::Mixture;
use grpo_engine_protocol::{ChoiceLogprobs, RoutedExperts, TokenIds, Usage};
use std::sync::Arc;

fn answer(ids: usize, logprobs: Option<usize>, version: &str) -> CompletionResponse {
    CompletionResponse {
        id: "x".into(),
        object: "text_completion".into(),
        created: 0,
        model: "m".into(),
        weights_version: version.into(),
        choices: vec![CompletionChoice {
            index: 0,
            text: String::new(),
            token_ids: vec![1; ids],
            finish_reason: FinishReason::Stop,
            stop_reason: None,
            logprobs: logprobs.map(|n| ChoiceLogprobs {
                token_logprobs: vec![-0.1; n],
            }),
            routed_experts: None,
            weights_version: version.into(),
        }],
        usage: Usage::default(),
    }
}

fn ask(max_tokens: u32) -> Ask<'static> {
    Ask {
        time_left: std::time::Duration::from_secs(60),
        prompt: TokenIds(&[1], &[2]),
        max_tokens,
        temperature: 1.0,
        top_p: 1.0,
        top_k: 0,
        penalties: Default::default(),
        seed: 0,
        stop_token_ids: Vec::new(),
        experts: None,
        conversation: None,
    }
}

fn checked(answer: CompletionResponse, version: &str, max_tokens: u32) -> Result<Sample, Wrong> {
    super::checked(answer, version, &ask(max_tokens))
}

/// Defect 24: an engine that omits a logprob is asked again; no value is made up.
#[test]
fn an_answer_with_missing_or_foreign_logprobs_is_no_answer() {
    assert!(checked(answer(3, Some(3), "a-v1"), "a-v1", 8).is_ok());
    assert!(checked(answer(3, Some(2), "a-v1"), "a-v1", 8).is_err());
    assert!(checked(answer(3, None, "a-v1"), "a-v1", 8).is_err());
    assert!(checked(answer(0, Some(0), "a-v1"), "a-v1", 8).is_err());
    assert!(checked(answer(9, Some(9), "a-v1"), "a-v1", 8).is_err());
    let mut nan = answer(1, Some(1), "a-v1");
    nan.choices[0].logprobs = Some(ChoiceLogprobs {
        token_logprobs: vec![f32::NAN],
    });
    assert!(checked(nan, "a-v1", 8).is_err());
}

#[test]
fn an_answer_of_other_weights_is_no_answer() {
    assert!(checked(answer(3, Some(3), "a-v1"), "a-v2", 8).is_err());
}

#[test]
fn an_answer_with_experts_of_other_tokens_is_no_answer_and_with_those_of_another_model_ends_the_run() {
    let mixture = Mixture {
        experts: 4,
        per_token: 1,
        layers: vec![true, false],
    };
    let ask = Ask {
        experts: Some((Arc::new(mixture), 1)),
        ..ask(8)
    };
    let with = |from: usize, tokens: usize, numbers: &[u16]| {
        let mut answer = answer(3, Some(3), "a-v1");
        answer.choices[0].routed_experts = Some(RoutedExperts::of_numbers(from, tokens, numbers).unwrap());
        super::checked(answer, "a-v1", &ask)
    };
    let numbers = [3, 0, 2, 0, 1, 0];
    let experts = with(1, 3, &numbers).unwrap().experts.unwrap();
    assert_eq!((experts.from, experts.to, &experts.bytes[..]), (1, 4, &[3, 2, 1][..]));
    assert!(matches!(with(0, 3, &numbers), Err(Wrong::Answer(_))));
    assert!(matches!(with(1, 2, &numbers[..4]), Err(Wrong::Answer(_))));
    assert!(matches!(with(1, 3, &[3, 2, 1]), Err(Wrong::Engine(_))));
    let none = super::checked(answer(3, Some(3), "a-v1"), "a-v1", &ask);
    assert!(matches!(none, Err(Wrong::Answer(_))));
}
