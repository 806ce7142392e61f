use super::*;
use crate::tasks::Tasks;
use grpo_records::judged::vote_of;
use std::path::Path;

#[tokio::test]
async fn the_last_message_of_a_conversation_is_answered_and_a_restarted_server_answers_the_same() {
    let row = r#"{"instance_id":"a","split":"train","problem_statement":"p","lines":[1,9],"repair":["a","b"]}"#;
    let mut tasks = Tasks::default();
    tasks.rows.take(Path::new("rows.jsonl"), row).unwrap();
    let turn = json!({"problem": "p", "history": "", "response": "```bash\nsed -i '1,9s/a/b/' $F\n```"});
    let asked = json!({"model": MODEL, "temperature": 1.0, "seed": 3, "messages": [
        {"role": "system", "content": "a system text"}, {"role": "user", "content": turn.to_string()},
    ]});
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut votes = Vec::new();
    for _ in 0..2 {
        let server = start("127.0.0.1", Judge::of(&tasks)).await.unwrap();
        let url = format!("{}/chat/completions", server.url);
        let answer = client.post(url).json(&asked).send().await.unwrap();
        let answer: Value = answer.error_for_status().unwrap().json().await.unwrap();
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        votes.push(vote_of(text));
    }
    assert!(votes[0].is_some() && votes[0] == votes[1], "{votes:?}");
}
