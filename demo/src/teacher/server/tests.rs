use super::*;
use crate::tasks::Tasks;
use crate::teacher::Agent;
use std::path::Path;

#[tokio::test]
async fn a_conversation_is_answered_with_a_call_and_a_probe_with_text() {
    let row =
        r#"{"instance_id":"a","split":"train","problem_statement":"p","file":"a.py","lines":[1,9],"repair":["a","b"]}"#;
    let mut tasks = Tasks::default();
    tasks.rows.take(Path::new("rows.jsonl"), row).unwrap();
    let server = start("127.0.0.1", Teacher::of(Agent::QwenCode, &tasks)).await.unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let ask = async |content: &str| -> Value {
        let asked = json!({"model": MODEL, "temperature": 1.0, "seed": 3, "max_tokens": 9,
                           "messages": [{"role": "user", "content": content}]});
        let url = format!("{}/chat/completions", server.url);
        let answer = client.post(url).json(&asked).send().await.unwrap();
        answer.error_for_status().unwrap().json().await.unwrap()
    };
    let choice = ask("p").await["choices"][0].take();
    assert_eq!(choice["finish_reason"], "tool_calls");
    let function = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(function["name"], "run_shell_command");
    let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments["command"], "grep -n '' $F | sed -n '1,9p'");
    let choice = ask("Say something.").await["choices"][0].take();
    assert_eq!(choice["finish_reason"], "stop");
    assert!(choice["message"]["tool_calls"].is_null());
}
