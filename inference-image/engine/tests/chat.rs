//! Conversations in text, answered by the demo's model.

use crate::support::{CONTEXT, Running, options, start, write_model};
use grpo_chat_template::{ChatMessage, ChatTemplate, PromptShape, Role};
use grpo_engine_protocol::{
    ChatRequest, ChatResponse, ChatRole, ChatText, CompletionRequest, ErrorBody, ErrorCode, FinishReason,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/model")
}

const SYSTEM: &str = "You mend a file.";
const TASK: &str = "calc.py subtracts: what is wrong? <|im_end|>";

fn request(max_tokens: u32, seed: u64) -> ChatRequest {
    let said = |role, content: &str| ChatText {
        role,
        content: content.to_owned(),
    };
    ChatRequest {
        model: "judge".to_owned(),
        messages: vec![said(ChatRole::System, SYSTEM), said(ChatRole::User, TASK)],
        max_tokens: Some(max_tokens),
        temperature: 1.0,
        top_p: 1.0,
        top_k: None,
        min_p: None,
        presence_penalty: None,
        frequency_penalty: None,
        repetition_penalty: None,
        seed: Some(seed),
    }
}

/// Sends a JSON request to an engine.
async fn put(engine: &Running, request: &Value) -> Result<ChatResponse, ErrorBody> {
    let call = engine.client.post(format!("{}/v1/chat/completions", engine.url));
    let answer = call.json(request).send().await.unwrap();
    match answer.status().as_u16() {
        200 => Ok(answer.json().await.unwrap()),
        status => {
            let error: ErrorBody = answer.json().await.unwrap();
            assert_eq!(error.status(), status);
            Err(error)
        }
    }
}

async fn chat(engine: &Running, request: &ChatRequest) -> Result<ChatResponse, ErrorBody> {
    put(engine, &serde_json::to_value(request).unwrap()).await
}

#[tokio::test]
async fn a_conversation_is_answered_with_the_text_of_what_its_prompt_samples() {
    let engine = start(options(&demo())).await;
    let template = ChatTemplate::load(&demo()).unwrap();
    let messages = [
        ChatMessage::new(Role::System, SYSTEM),
        ChatMessage::new(Role::User, TASK),
    ];
    let prompt = template.prompt(&PromptShape::default(), &messages).unwrap();
    let mut ends = Vec::new();
    for seed in 0..4 {
        for max_tokens in [4, 400] {
            let answer = chat(&engine, &request(max_tokens, seed)).await.unwrap();
            let sampled = CompletionRequest::of_tokens("judge", prompt.clone(), max_tokens, seed);
            let sampled = engine.complete(&sampled).await.unwrap();
            let row = &sampled.choices[0];
            assert_eq!(answer.model, "judge");
            assert_eq!(answer.usage, Some(sampled.usage));
            let choice = &answer.choices[0];
            let content = choice.message.content.as_deref().unwrap();
            assert_eq!(content, template.text(&row.token_ids).unwrap());
            assert!(!content.contains("<|im_end|>"), "{content}");
            let word = match row.finish_reason {
                FinishReason::Stop => "stop",
                _ => "length",
            };
            assert_eq!(choice.finish_reason.as_deref(), Some(word));
            ends.push(word);
        }
    }
    assert!(ends.contains(&"stop") && ends.contains(&"length"), "{ends:?}");
    let metrics = engine.client.get(format!("{}/metrics", engine.url)).send().await;
    let metrics = metrics.unwrap().text().await.unwrap();
    assert!(metrics.contains("grpo_engine_requests_total 16"), "{metrics}");
}

#[tokio::test]
async fn an_answer_may_take_what_the_context_leaves_and_a_prompt_no_more_than_it_has() {
    let mut small = options(&demo());
    small.max_context = Some(64);
    let engine = start(small).await;
    let mut ends = Vec::new();
    for seed in 0..4 {
        let answer = chat(&engine, &request(1_000_000, seed)).await.unwrap();
        let total = answer.usage.unwrap().total_tokens;
        assert!(total <= 64, "{total}");
        ends.push((answer.choices[0].finish_reason.clone().unwrap(), total));
    }
    assert!(ends.contains(&("length".to_owned(), 64)), "{ends:?}");
    let mut long = request(1, 0);
    long.messages[1].content = "a ".repeat(100);
    let error = chat(&engine, &long).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::ContextTooLong);
}

#[tokio::test]
async fn a_model_without_a_tokenizer_serves_ids_and_names_the_file_that_text_needs() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), 1);
    for missing in ["tokenizer_config.json", "tokenizer.json"] {
        let engine = start(options(dir.path())).await;
        let ids = CompletionRequest::of_tokens("policy", vec![4], CONTEXT as u32 - 1, 5);
        engine.complete(&ids).await.unwrap();
        let error = chat(&engine, &request(4, 1)).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::TextPromptUnsupported);
        let file = dir.path().join(missing).display().to_string();
        assert!(error.message.contains(&file), "{error}");
        std::fs::copy(demo().join(missing), dir.path().join(missing)).unwrap();
    }
}

#[tokio::test]
async fn a_conversation_is_refused_with_the_field_that_is_wrong() {
    let engine = start(options(&demo())).await;
    let good = serde_json::to_value(request(4, 1)).unwrap();
    for (field, value) in [
        ("logit_bias", json!({"4": 1})),
        ("presence_penalty", json!(3.0)),
        ("min_p", json!(-0.1)),
        ("messages", json!([])),
        ("messages", json!([{"role": "tool", "content": "4"}])),
        ("max_tokens", json!(0)),
        ("temperature", json!(-1.0)),
        ("top_p", json!(0.0)),
        ("top_k", json!(-2)),
    ] {
        let mut wrong = good.clone();
        wrong[field] = value;
        let error = put(&engine, &wrong).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidRequest);
        assert!(error.message.contains(field), "{error}");
    }
    let error = put(&engine, &json!({"messages": []})).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidRequest);
}
