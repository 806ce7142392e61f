use super::*;
use grpo_engine_protocol::TextChoice;
use std::path::Path;

fn template() -> ChatTemplate {
    ChatTemplate::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/model")).unwrap()
}

fn answer(message: TextMessage, finish: &str) -> TextResponse {
    TextResponse {
        choices: vec![TextChoice {
            message,
            finish_reason: Some(finish.to_owned()),
        }],
        usage: None,
    }
}

/// The sample of an answer, and its text in the form of the demo's template.
fn sampled(answer: TextResponse) -> Result<(Sample, String), Unusable> {
    let template = template();
    let shape = PromptShape::default();
    let conversation = Conversation {
        template: &template,
        shape: &shape,
        messages: &|| None,
    };
    let sample = sample_of(answer, conversation)?;
    let text = template.text(&sample.ids).unwrap();
    Ok((sample, text))
}

fn usable(answer: TextResponse) -> (Sample, String) {
    sampled(answer).unwrap_or_else(|_| panic!("the answer is usable"))
}

fn calls(arguments: &str) -> TextMessage {
    TextMessage {
        tool_calls: Some(vec![TextCall::new("c1", "bash", arguments)]),
        ..TextMessage::new("assistant", "Next.")
    }
}

#[test]
fn an_answer_ends_with_an_end_token_unless_it_was_cut_off() {
    let words = || TextMessage::new("assistant", "a <|im_end|> b");
    let (whole, text) = usable(answer(words(), "stop"));
    let stop = *whole.ids.last().unwrap();
    assert!(template().stop_ids().contains(&stop));
    assert_eq!((whole.finish, text.as_str()), (FinishReason::Stop, "a <|im_end|> b"));
    assert!(whole.text_only && whole.logprobs == vec![0.0; whole.ids.len()]);
    let (same, _) = usable(answer(words(), "eos"));
    assert_eq!(same, whole);
    let (cut, text) = usable(answer(words(), "length"));
    assert_eq!((cut.finish, text.as_str()), (FinishReason::Length, "a <|im_end|> b"));
    assert_eq!(cut.ids, whole.ids[..whole.ids.len() - 1]);
}

#[test]
fn an_answer_that_a_filter_cut_is_the_policys_and_one_with_an_unknown_end_is_asked_for_again() {
    let words = || TextMessage::new("assistant", "a");
    let (cut, text) = usable(answer(words(), "content_filter"));
    assert_eq!((cut.finish, text.as_str()), (FinishReason::Length, "a"));
    let none = TextResponse {
        choices: Vec::new(),
        usage: None,
    };
    for unusable in [answer(words(), "error"), none] {
        assert!(matches!(sampled(unusable), Err(Unusable::Again(_))));
    }
}

#[test]
fn calls_that_the_template_does_not_show_are_not_dropped_silently() {
    let Err(Unusable::Never(why)) = sampled(answer(calls("{}"), "tool_calls")) else {
        panic!("the demo's template shows no calls");
    };
    assert!(why.contains("does not show calls"), "{why}");
}

#[test]
fn calls_with_malformed_arguments_become_a_malformed_call_in_the_text() {
    let (_, text) = usable(answer(calls("{\"command\": \"rm"), "tool_calls"));
    assert_eq!(
        text,
        "Next.\n<tool_call>\n{\"name\": \"bash\", \"arguments\": {\"command\": \"rm}\n</tool_call>"
    );
    let parsed = crate::calls::parse(grpo_crds::agent::CallFormat::Hermes, &text, "");
    assert!(parsed.malformed.is_some() && parsed.calls.is_empty(), "{parsed:?}");
}

#[test]
fn a_result_without_a_call_is_sent_as_words_of_the_user() {
    let result = answerable(message_of(&ChatMessage::new(Role::Tool, "no call")));
    assert_eq!(result, TextMessage::new("user", "no call"));
    let of_call = message_of(&ChatMessage::tool("c1", "4"));
    assert_eq!(answerable(of_call.clone()), of_call);
}
