use super::*;
use grpo_records::{ChatPrompt, ChatTurn, EpisodeMeta, TurnRecord, fixture, look};
use serde_json::{Value, json};

/// A store whose resolved episode has the parts of messages; the unresolved one is of an earlier driver.
fn store() -> tempfile::TempDir {
    let store = tempfile::tempdir().unwrap();
    fixture::write_store(store.path());
    let file = store.path().join(paths::meta(fixture::RESOLVED));
    let meta: EpisodeMeta = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let prompt = ChatPrompt {
        thinking: true,
        ..ChatPrompt::default()
    };
    let turn = |number: u32, prompt: Option<ChatPrompt>| TurnRecord {
        prompt_length: 3 + 3 * number as usize,
        chat: Some(ChatTurn {
            prompt,
            ..ChatTurn::default()
        }),
        ..fixture::turn(number, "ls", "a.py")
    };
    let mut turns = [turn(0, Some(prompt)), turn(1, None)];
    turns[0].opening = vec![grpo_records::Message {
        role: "user".into(),
        content: "The loop is off by one.".into(),
        tokens: 3,
        note: None,
    }];
    fixture::write_ended(store.path(), &fixture::ended(&meta, &turns));
    store
}

fn part() -> Part {
    Part {
        iteration: Some(1),
        ..Part::default()
    }
}

async fn exported(format: DatasetFormat) -> (Dataset, Vec<Value>) {
    let (store, dest) = (store(), tempfile::tempdir().unwrap());
    let mut source = Source::Folder(look::Records::open(store.path()).unwrap());
    let done = export(&mut source, &part(), format, dest.path()).await.unwrap();
    let text = std::fs::read_to_string(dest.path().join(format.file())).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let lines = lines.collect();
    (done, lines)
}

#[tokio::test]
async fn every_sample_with_a_verdict_is_a_row_of_its_ids() {
    let (done, rows) = exported(DatasetFormat::Tokens).await;
    assert_eq!((done.episodes, done.resolved, done.rows, done.left_out), (2, 1, 2, 0));
    assert_eq!(rows[0]["tokens"], json!([1, 2, 3, 10, 2, 20, 11, 2, 21]));
    assert_eq!(rows[0]["mask"], json!([0, 0, 0, 1, 1, 0, 1, 1, 0]));
    let resolved: Vec<&Value> = rows.iter().map(|row| &row["resolved"]).collect();
    assert_eq!(resolved, [true, false]);
    assert_eq!(
        (&rows[0]["task"], &rows[0]["reward"]),
        (&json!("psf__requests-1"), &json!(1.0))
    );
}

#[tokio::test]
async fn an_episode_without_the_parts_of_messages_is_left_out_and_counted() {
    let (done, rows) = exported(DatasetFormat::Messages).await;
    assert_eq!((done.episodes, done.rows, done.left_out), (2, 1, 1));
    let answer = json!({"role": "assistant", "content": "```bash\nls\n```"});
    let messages = json!([
        {"role": "user", "content": "The loop is off by one."},
        answer,
        {"role": "user", "content": "a.py"},
        answer,
    ]);
    assert_eq!(rows[0]["messages"], messages);
    assert_eq!(rows[0]["enable_thinking"], true);
    let words = done.in_words();
    assert!(words.contains("1 rows of 2 episodes (1 resolved)"), "{words}");
    assert!(words.contains("1 rows cannot be written as messages"), "{words}");
}

#[tokio::test]
async fn ids_of_an_episode_that_was_answered_in_text_are_refused_and_its_messages_are_not() {
    let (store, dest) = (store(), tempfile::tempdir().unwrap());
    let file = store.path().join(paths::meta(fixture::RESOLVED));
    let mut meta: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    meta["untrainable"] = json!(true);
    std::fs::write(&file, meta.to_string()).unwrap();
    let mut source = Source::Folder(look::Records::open(store.path()).unwrap());
    let tokens = export(&mut source, &part(), DatasetFormat::Tokens, dest.path()).await;
    let words = tokens.unwrap_err().to_string();
    assert!(
        words.contains(fixture::RESOLVED) && words.contains("--format messages"),
        "{words}"
    );
    let messages = export(&mut source, &part(), DatasetFormat::Messages, dest.path()).await;
    assert_eq!(messages.unwrap().rows, 1);
}
