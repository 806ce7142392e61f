use super::*;

#[test]
fn a_request_of_the_contract_is_read_as_written() {
    let request: CompletionRequest = serde_json::from_str(
        r#"{"model": "m", "prompt": [1, 2], "max_tokens": 8, "temperature": 1, "top_p": 1.0, "top_k": -1, "n": 2,
                "seed": 7, "stop_token_ids": [3], "logprobs": 1, "return_token_ids": true}"#,
    )
    .unwrap();
    assert_eq!(request.prompt, Prompt::Tokens(vec![1, 2]));
    assert_eq!((request.n, request.seed, request.top_k), (2, Some(7), -1));
    let batch: CompletionRequest = serde_json::from_str(r#"{"prompt": [[1], [2, 3]]}"#).unwrap();
    assert_eq!(batch.prompt, Prompt::Batch(vec![vec![1], vec![2, 3]]));
    let text: CompletionRequest = serde_json::from_str(r#"{"prompt": "hello"}"#).unwrap();
    assert_eq!(text.prompt, Prompt::Text("hello".to_owned()));
}

#[test]
fn a_field_that_no_engine_applies_is_refused_by_name() {
    let refused = serde_json::from_str::<CompletionRequest>(r#"{"prompt": [1], "logit_bias": 1.05}"#);
    assert!(refused.unwrap_err().to_string().contains("logit_bias"));
}

#[test]
fn a_finish_reason_is_written_as_openai_writes_it() {
    assert_eq!(serde_json::to_string(&FinishReason::Length).unwrap(), "\"length\"");
}

#[test]
fn a_prompt_in_two_places_is_written_as_one_list() {
    let settings = CompletionRequest {
        stop_token_ids: vec![9],
        top_k: 5,
        min_p: Some(0.1),
        repetition_penalty: Some(1.5),
        ..CompletionRequest::of_tokens("m", Vec::new(), 8, 7)
    };
    for (row, added) in [(&[1, 2][..], &[3][..]), (&[], &[4]), (&[5], &[])] {
        let prompt = TokenIds(row, added);
        let written = CompletionRequest::asking(prompt, settings.clone()).to_json().unwrap();
        let read: CompletionRequest = serde_json::from_slice(&written).unwrap();
        let whole = CompletionRequest {
            prompt: Prompt::Tokens(prompt.to_vec()),
            ..settings.clone()
        };
        assert_eq!(read, whole);
        assert_eq!(
            (prompt.len(), prompt.last()),
            (prompt.to_vec().len(), prompt.to_vec().last().copied())
        );
    }
}
