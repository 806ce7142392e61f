//! Trimmed histories in whole runs: the policy's prompts, and the rows that are trained on.

use crate::world::{World, model};
use grpo_chat_template::{ChatMessage, ChatTemplate, PromptShape, Role};
use grpo_crds::agent::Trim;
use grpo_driver::agent::history::marker;
use grpo_records::{Batch, EpisodeEnd, EpisodeRecord, Outcome, TurnRecord, ended, paths, rows};

/// A run of one iteration whose policy fixes the file and reads much in every turn.
async fn trimmed(per_turn: bool, limit: usize) -> World {
    let world = World::new(1).await;
    *world.engine.policy.lock().unwrap() =
        Box::new(|_, _| "Go on.\n```bash\nsed -i 's/a - b/a + b/' $F; seq 1 60\n```".into());
    let mut settings = world.settings();
    settings.iterations = 1;
    settings.evaluate.clear();
    settings.agent.limits.turns = 9;
    settings.agent.limits.context_tokens = limit;
    settings.agent.history.trim = Some(Trim { head: 0.3, tail: 0.5 });
    settings.agent.rows_per_turn = per_turn;
    world.go(settings, 1).await.unwrap();
    world.verified().await;
    world
}

/// The messages of a turn's history.
fn messages_before(turns: &[TurnRecord], turn: &TurnRecord) -> Vec<ChatMessage> {
    let role = |word: &str| match word {
        "system" => Role::System,
        _ => Role::User,
    };
    let opening = turns[0].opening.iter();
    let mut messages: Vec<_> = opening
        .map(|said| ChatMessage::new(role(&said.role), said.content.clone()))
        .collect();
    for earlier in &turns[..turn.turn as usize] {
        let gap = turn.omitted.map(|gap| gap.from..gap.to).unwrap_or_default();
        if !gap.is_empty() && earlier.turn == gap.start {
            messages.push(ChatMessage::new(Role::User, marker(gap.len())));
        }
        if !gap.contains(&earlier.turn) {
            messages.push(ChatMessage::new(Role::Assistant, earlier.text.clone()));
            messages.push(ChatMessage::new(Role::User, earlier.observation_text.clone()));
        }
    }
    messages
}

#[tokio::test]
async fn an_episode_continues_beyond_its_context_without_the_turns_in_the_middle() {
    let world = trimmed(true, 1024).await;
    let store = world.store();
    let template = ChatTemplate::load(&model()).unwrap();
    let batch: Batch = {
        let mut batch: Batch = store.read(&paths::batch(1)).await.unwrap();
        let mut files = std::collections::HashMap::new();
        for row in &batch.rows {
            let file = row.stored.rows.file.clone();
            files.insert(file.clone(), store.bytes(&file).await.unwrap());
        }
        batch
            .fill(|file| Ok::<_, std::convert::Infallible>(files[file].clone()))
            .unwrap();
        batch
    };
    let metas = world.metas().await;
    assert!(!metas.is_empty());
    for meta in &metas {
        assert_eq!(
            (&meta.outcome, meta.end, meta.turns),
            (&Outcome::Resolved, EpisodeEnd::TurnLimit, 9)
        );
        let folder = meta.key.dir(meta.attempt);
        let record: EpisodeRecord = store.read(&paths::trajectory(&folder)).await.unwrap();
        let stored = rows::decode(&store.bytes(&paths::rows(&folder)).await.unwrap()).unwrap();
        let mut cuts = Vec::new();
        for turn in &record.turns {
            let seen = &stored[turn.row as usize].tokens[..turn.prompt_length];
            let rendered = template.prompt(&PromptShape::default(), &messages_before(&record.turns, turn));
            assert_eq!(seen, rendered.unwrap(), "turn {}", turn.turn);
            // A full answer of 256 tokens fits after it.
            assert!(seen.len() <= 1024 - 256);
            cuts.push(turn.omitted);
        }
        cuts.dedup();
        assert!(cuts.len() > 2 && cuts[0].is_none(), "{cuts:?}");
        // Turns between two cuts are stored once.
        assert_eq!(stored.len(), cuts.len());
        let told = ended::messages(&record.turns);
        assert!(
            told.iter().any(|message| message.content.starts_with("[... ")),
            "{told:?}"
        );

        let of_episode: Vec<_> = batch.rows.iter().filter(|row| row.episode == meta.key.name()).collect();
        assert_eq!(of_episode.len(), 9);
        for (row, turn) in of_episode.iter().zip(&record.turns) {
            assert_eq!(row.turn, Some(turn.turn));
            assert_eq!(row.tokens.len(), turn.prompt_length + turn.sampled_length);
            assert!(row.mask[..turn.prompt_length].iter().all(|mask| *mask == 0));
            assert_eq!(row.sampled(), turn.sampled_length);
            row.check().unwrap();
        }
        // Each sampled token is trained on in one row.
        let trained: usize = of_episode.iter().map(|row| row.sampled()).sum();
        assert_eq!(trained, meta.sampled_tokens);
    }
}

#[tokio::test]
async fn turns_between_two_cuts_are_one_row_where_rows_are_not_per_turn() {
    let world = trimmed(false, 1024).await;
    let batch: Batch = world.store().read(&paths::batch(1)).await.unwrap();
    for meta in world.metas().await {
        let rows = batch.rows.iter().filter(|row| row.episode == meta.key.name());
        let rows = rows.count();
        assert!((3..9).contains(&rows), "{rows}");
    }
}

#[tokio::test]
async fn a_newest_turn_that_fills_the_context_ends_the_episode() {
    let world = trimmed(true, 240).await;
    for meta in world.metas().await {
        assert_eq!((meta.end, meta.turns), (EpisodeEnd::ContextFull, 1));
    }
}
