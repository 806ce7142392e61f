use super::*;
use grpo_records::look::Records;
use grpo_records::{EpisodeScope, Outcome, Row, Writer, fixture};
use std::path::PathBuf;

struct World {
    dir: tempfile::TempDir,
    source: Source,
    turns: Vec<TurnRecord>,
    heads: Heads,
}

async fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    fixture::write_store(dir.path());
    fixture::write_journal(dir.path());
    let mut source = Source::Folder(Records::open(dir.path()).unwrap());
    World {
        dir,
        turns: source.turns(fixture::RESOLVED).await.unwrap(),
        source,
        heads: Heads::default(),
    }
}

impl World {
    fn file(&self) -> PathBuf {
        self.dir.path().join(paths::token_stats(1))
    }

    async fn numbers(&mut self, run: &str) -> Result<BTreeMap<u32, TrainerTokens>, Error> {
        let of = step(run, 1);
        numbers(&mut self.source, &self.heads, &of, fixture::RESOLVED, &self.turns).await
    }
}

fn step(run: &str, step: u32) -> StepOf {
    StepOf {
        run: run.to_owned(),
        step,
    }
}

#[tokio::test]
async fn the_head_of_a_step_is_read_once_in_a_run() {
    let mut world = world().await;
    let first = world.numbers("uid").await.unwrap();
    assert!(!first.is_empty());
    // Only the length of the head changes: reading it again fails.
    let mut bytes = std::fs::read(world.file()).unwrap();
    bytes[..PREFIX as usize].fill(0xff);
    std::fs::write(world.file(), bytes).unwrap();
    assert_eq!(world.numbers("uid").await.unwrap(), first);
    assert!(world.numbers("another").await.is_err());
}

#[tokio::test]
async fn a_file_that_is_not_there_yet_is_looked_for_again() {
    let mut world = world().await;
    let bytes = std::fs::read(world.file()).unwrap();
    std::fs::remove_file(world.file()).unwrap();
    assert!(world.numbers("uid").await.unwrap().is_empty());
    std::fs::write(world.file(), bytes).unwrap();
    assert!(!world.numbers("uid").await.unwrap().is_empty());
}

#[tokio::test]
async fn only_the_heads_of_the_last_steps_are_kept() {
    let world = world().await;
    let file = std::fs::read(world.file()).unwrap();
    let end = Head::bytes(&file[..PREFIX as usize]).unwrap();
    let head = Arc::new(Head::read(&file[..end as usize]).unwrap());
    for number in 1..=6 {
        world.heads.keep(&step("uid", number), &head);
    }
    let kept: Vec<u32> = (1..=6)
        .filter(|number| world.heads.get(&step("uid", *number)).is_some())
        .collect();
    assert_eq!(kept, [3, 4, 5, 6]);
}

#[tokio::test]
async fn without_statistics_of_tokens_the_batch_says_whose_advantages_they_are() {
    let mut world = world().await;
    std::fs::remove_file(world.file()).unwrap();
    let rows = |sample| {
        let mut meta = fixture::episode("psf__requests-1", sample, Outcome::Resolved).meta;
        meta.key.scope = EpisodeScope::Iteration { iteration: 1 };
        let ended = fixture::ended(&meta, &[fixture::look_turn()]);
        Row::of(&ended, &Outcome::Resolved, 1.0)
    };
    let mut batch = Batch::new(Writer::driver(1), "uid", 1, 1);
    batch.rows = [rows(1), rows(0)].concat();
    let lists = [vec![0.5, -0.5]];
    let none = advantages(&mut world.source, &world.heads, &step("uid", 1), &lists).await;
    assert!(none.unwrap().is_empty());
    let path = world.dir.path().join(paths::batch(1));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, serde_json::to_vec(&batch).unwrap()).unwrap();
    let found = advantages(&mut world.source, &world.heads, &step("uid", 1), &lists).await;
    let found = found.unwrap();
    assert_eq!(found[fixture::RESOLVED], -0.5);
    assert_eq!(found[&fixture::RESOLVED.replace("__i0", "__i1")], 0.5);
}
