//! Recorded episodes as a dataset: mode Finetune reads their messages as the ids that were recorded.

use super::{agent, episodes};
use crate::world::{World, model_with};
use grpo_chat_template::ChatTemplate;
use grpo_crds::grpo_run::Overlong;
use grpo_driver::config::{Checkpoint, Settings};
use grpo_driver::finetune::FinetuneSettings;
use grpo_driver::finetune::conversations::{self, Conversation};
use grpo_driver::tasks::source::Source;
use grpo_records::dataset::{message_rows, token_rows};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

const TEMPLATE: &str = include_str!("../harnesses/chat_template.jinja");

/// An answer as the template writes it, so that its ids are the ones that its messages give.
fn call(command: &str) -> String {
    let arguments = format!("{{\"command\": \"{command}\"}}");
    format!("Next.\n<tool_call>\n{{\"name\": \"bash\", \"arguments\": {arguments}}}\n</tool_call>")
}

fn policy(prompt: &str) -> String {
    match prompt.matches("<|im_start|>assistant\n").count() - 1 {
        done if done < 4 => call(&format!("echo look {done}")),
        4 => call("sed -i 's/a - b/a + b/' a.py"),
        _ => "Done.".to_owned(),
    }
}

fn finetune(model: &Path) -> FinetuneSettings {
    FinetuneSettings {
        namespace: String::new(),
        name: String::new(),
        uid: String::new(),
        resume: Default::default(),
        seed: 0,
        store_path: String::new(),
        model: model.to_owned(),
        dataset: Source::File(PathBuf::new()),
        resolved_only: false,
        epochs: 1,
        batch: 1,
        max_tokens: 1 << 20,
        overlong: Overlong::Refuse,
        // The rows say it themselves.
        thinking: false,
        held_out: None,
        checkpoint: Checkpoint { every: 1, keep: 1 },
        trainer: String::new(),
        patience: Duration::ZERO,
    }
}

/// The conversations of these rows, as mode Finetune reads them.
fn read(world: &World, model: &Path, rows: &[Value]) -> Vec<Conversation> {
    let file = world.mount.path().join("rows.jsonl");
    let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
    std::fs::write(&file, lines.join("\n")).unwrap();
    let template = ChatTemplate::load(model).unwrap();
    let read = conversations::read("finetune.dataset", &[file], &template, &finetune(model)).unwrap();
    read.rows.into_iter().map(|(_, conversation)| conversation).collect()
}

/// Runs, and compares the messages of each episode with its ids, as mode Finetune reads both.
async fn compare(world: &World, settings: Settings, rows: usize, what: &str) {
    let model = settings.model.clone();
    world.go(settings, 1).await.unwrap();
    let folder = world.verified().await;
    let mut learnt = 0;
    for (meta, ended) in episodes(&folder) {
        let found = message_rows(&meta, &ended.record.turns);
        assert_eq!((found.rows.len(), found.left_out), (rows, 0), "{what}");
        let from_messages = read(world, &model, &found.rows);
        assert_eq!(from_messages, read(world, &model, &token_rows(&meta, &ended)), "{what}");
        let ranges = from_messages.iter().flat_map(|row| &row.learnt);
        learnt += ranges.map(|(from, to)| to - from).sum::<usize>();
    }
    let sampled: usize = world.metas().await.iter().map(|meta| meta.sampled_tokens).sum();
    assert!(sampled > 0, "{what}");
    assert_eq!(learnt, sampled, "{what}: every sampled token is learnt once");
}

/// One iteration of one prompt.
fn short(world: &World) -> Settings {
    let mut settings = world.settings();
    settings.iterations = 1;
    settings.prompts = 1;
    settings.samples = 2;
    settings.evaluate.clear();
    settings
}

#[tokio::test]
async fn messages_of_an_agent_give_the_ids_and_the_mask_that_were_recorded() {
    // One row; a side conversation; a compacted history; an answer that came back changed.
    for (mode, rows) in [("linear", 1), ("aside", 2), ("compact", 2), ("changed", 2)] {
        let world = World::new(1).await;
        *world.engine.policy.lock().unwrap() = Box::new(|prompt, _| policy(prompt));
        let mut settings = short(&world);
        settings.model = model_with(TEMPLATE, world.mount.path());
        settings.agent.kind = agent(mode);
        settings.agent.limits.turns = 100;
        settings.agent.limits.context_tokens = 100_000;
        compare(&world, settings, rows, mode).await;
    }
}

#[tokio::test]
async fn messages_of_the_bash_loop_give_the_ids_and_the_mask_that_were_recorded() {
    let world = World::new(1).await;
    let settings = short(&world);
    compare(&world, settings, 1, "bash").await;
}
