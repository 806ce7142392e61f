use super::*;

const BOUNDS: Bounds = Bounds {
    vocabulary: 10,
    max_context: 8,
};

fn refused(change: impl FnOnce(&mut CompletionRequest)) -> ErrorBody {
    let mut request = CompletionRequest::of_tokens("m", vec![1, 2], 4, 0);
    change(&mut request);
    match job(request, None, BOUNDS) {
        Err(error) => error,
        Ok(_) => panic!("the request was taken"),
    }
}

#[test]
fn every_refusal_names_the_field_that_is_wrong() {
    assert!(
        refused(|request| request.temperature = -1.0)
            .message
            .contains("temperature")
    );
    assert!(refused(|request| request.top_p = 0.0).message.contains("top_p"));
    assert!(refused(|request| request.top_k = -2).message.contains("top_k"));
    assert!(refused(|request| request.n = 0).message.contains("n must"));
    assert!(refused(|request| request.max_tokens = 0).message.contains("max_tokens"));
    assert_eq!(
        refused(|request| request.routed_experts_from = Some(0)).code,
        ErrorCode::ExpertsNotReported
    );
    assert!(
        refused(|request| request.prompt = Prompt::Tokens(vec![10]))
            .message
            .contains("vocabulary")
    );
    assert!(
        refused(|request| request.prompt = Prompt::Tokens(vec![]))
            .message
            .contains("empty")
    );
}

#[test]
fn what_does_not_fit_the_context_is_refused_before_it_runs() {
    assert_eq!(
        refused(|request| request.max_tokens = 7).code,
        ErrorCode::ContextTooLong
    );
}

#[test]
fn a_text_prompt_is_refused_and_both_ways_around_it_are_named() {
    let error = refused(|request| request.prompt = Prompt::Text("hello".to_owned()));
    assert_eq!(error.code, ErrorCode::TextPromptUnsupported);
    assert!(error.message.contains("token ids") && error.message.contains("/v1/chat/completions"));
}
