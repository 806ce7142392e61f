//! A small valid store, and forgeries of it that verification must find.

use super::{Check, claims, episodes, groups};
use grpo_records::fixture;
use grpo_records::folder::{EpisodeFolder, RunFolder};
use grpo_records::token_stats::{self, Columns, RowSpan};
use grpo_records::{
    Batch, EndedEpisode, EpisodeEnd, EpisodeMeta, EpisodeScope, Event, GroupRecord, JournalEntry, Outcome, Row, SCHEMA,
    StepMetrics, Writer, paths, rows,
};
use serde::Serialize;
use serde_json::Value;
use std::path::Path;

const SCOPE: EpisodeScope = EpisodeScope::Iteration { iteration: 1 };

/// One iteration of one group of two episodes.
fn store() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut batch = Batch::new(Writer::driver(1), "uid", 1, 1);
    let mut events = vec![
        Event::RunStarted {
            run: "uid".into(),
            namespace: "ns".into(),
            name: "run".into(),
            seed: 0,
            tasks_sha256: "00".into(),
            tasks: 1,
            agent: Default::default(),
            rows_per_turn: false,
            process: None,
            reward: None,
            sets_sha256: None,
            inputs_sha256: None,
        },
        Event::Promoted {
            weights: "a-v0".into(),
            manifest_sha256: "00".into(),
            step: 0,
        },
        Event::IterationStarted {
            iteration: 1,
            weights: "a-v0".into(),
            tasks: vec![0],
            dynamic: None,
        },
    ];
    let mut rewards = Vec::new();
    for (sample, outcome) in [(0, Outcome::Resolved), (1, Outcome::Unresolved)] {
        let (meta, ended) = episode(sample, outcome.clone());
        let path = meta.key.dir(1);
        fixture::write_ended(dir.path(), &ended);
        write(dir.path(), &paths::meta(&path), &meta);
        let reward = meta.reward.unwrap();
        rewards.push(reward);
        batch.rows.extend(Row::of(&ended, &outcome, reward));
        events.push(Event::Verdict {
            episode: path,
            outcome,
            reward,
        });
    }
    batch.groups.push(GroupRecord {
        group: 0,
        instance: "a".into(),
        rewards,
        voids: 0,
    });
    write(dir.path(), &paths::batch(1), &batch);
    let bytes = std::fs::read(dir.path().join(paths::batch(1))).unwrap();
    events.push(Event::BatchWritten {
        iteration: 1,
        step: 1,
        sha256: grpo_records::store::sha256_hex(&bytes),
        rows: 2,
    });
    events.push(Event::StepDone {
        step: 1,
        weights: "a-v1".into(),
        manifest_sha256: "00".into(),
    });
    for (at, event) in events.into_iter().enumerate() {
        journal(dir.path(), at as u64 + 1, event);
    }
    dir
}

fn journal(dir: &Path, sequence: u64, event: Event) {
    let entry = JournalEntry {
        schema: SCHEMA,
        writer: Writer::driver(1),
        sequence,
        at: 0,
        event,
    };
    write(dir, &paths::journal_entry(sequence), &entry);
}

fn episode(sample: u32, outcome: Outcome) -> (EpisodeMeta, EndedEpisode) {
    let mut meta = fixture::episode("a", sample, outcome).meta;
    meta.key.scope = SCOPE;
    let mut second = fixture::edit_turn(1, "1 passed");
    second.prompt_length = 6;
    second.end = Some(EpisodeEnd::Submitted);
    let ended = fixture::ended(&meta, &[fixture::look_turn(), second]);
    (meta, ended)
}

fn write(dir: &Path, path: &str, record: &impl Serialize) {
    let path = dir.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, serde_json::to_vec(record).unwrap()).unwrap();
}

/// Changes an existing record.
fn forge(dir: &Path, path: &str, change: impl FnOnce(&mut Value)) {
    let bytes = std::fs::read(dir.join(path)).unwrap();
    let mut record = serde_json::from_slice(&bytes).unwrap();
    change(&mut record);
    write(dir, path, &record);
}

/// Names of the checks that disagree; all checks except the verdicts, which need the official grader.
fn found(dir: &Path) -> Vec<&'static str> {
    let folder = RunFolder::open(dir).unwrap();
    let all: Vec<EpisodeFolder> = folder.episodes(&SCOPE).unwrap();
    let mut checks: Vec<Check> = episodes::check(&folder, &all).unwrap();
    checks.extend(groups::check(&folder, &all).unwrap());
    checks.extend(claims::check(&folder, &all).unwrap());
    assert!(checks.iter().any(|c| c.looked_at > 0));
    checks
        .iter()
        .filter(|c| !c.disagreements.is_empty())
        .map(|c| c.name)
        .collect()
}

fn of(sample: u32) -> String {
    format!("rollouts/iter-000001/a__g0__i{sample}")
}

#[test]
fn a_store_that_is_right_is_found_right() {
    let dir = store();
    assert_eq!(found(dir.path()), Vec::<&str>::new());
}

#[test]
fn a_token_that_was_not_sampled_is_found() {
    let dir = store();
    let path = paths::rows(&of(0));
    let mut rows = rows::decode(&std::fs::read(dir.path().join(&path)).unwrap()).unwrap();
    rows[0].tokens[4] = 9;
    std::fs::write(dir.path().join(&path), rows::encode(&rows).unwrap()).unwrap();
    let found = found(dir.path());
    assert!(
        found.contains(&"episodes are the token ids of their turns"),
        "{found:?}"
    );
    assert!(
        found.contains(&"rows of batches are their episodes, token by token"),
        "{found:?}"
    );
}

#[test]
fn a_row_that_is_missing_in_its_batch_or_there_twice_is_found() {
    let drops = |rows: &mut Vec<Value>| drop(rows.pop());
    let doubles = |rows: &mut Vec<Value>| rows.push(rows[0].clone());
    for change in [drops as fn(&mut Vec<Value>), doubles] {
        let dir = store();
        forge(dir.path(), &paths::batch(1), |batch| {
            change(batch["rows"].as_array_mut().unwrap())
        });
        let found = found(dir.path());
        assert!(
            found.contains(&"rows of batches are their episodes, token by token"),
            "{found:?}"
        );
    }
}

#[test]
fn an_episode_that_lies_elsewhere_or_ended_otherwise_is_found() {
    for (field, value) in [("attempt", serde_json::json!(2)), ("end", "TurnLimit".into())] {
        let dir = store();
        forge(dir.path(), &paths::meta(&of(0)), |meta| meta[field] = value);
        assert_eq!(
            found(dir.path()),
            ["episodes are the token ids of their turns"],
            "{field}"
        );
    }
}

#[test]
fn a_turn_that_is_not_where_its_row_has_it_is_found() {
    let dir = store();
    forge(dir.path(), &paths::trajectory(&of(1)), |t| {
        t["turns"][1]["promptLength"] = 5.into()
    });
    assert!(found(dir.path()).contains(&"episodes are the token ids of their turns"));
}

#[test]
fn a_command_that_was_not_said_is_found() {
    let dir = store();
    forge(dir.path(), &paths::trajectory(&of(1)), |t| {
        t["turns"][1]["action"]["payload"]["command"] = "echo".into()
    });
    assert_eq!(found(dir.path()), ["actions follow from the answers"]);
}

#[test]
fn a_batch_that_was_changed_after_the_step_is_found() {
    let dir = store();
    forge(dir.path(), &paths::batch(1), |b| {
        b["groups"][0]["rewards"] = serde_json::json!([1.0, 1.0])
    });
    let found = found(dir.path());
    assert!(
        found.contains(&"batches are the ones whose checksums were journalled"),
        "{found:?}"
    );
    assert!(
        found.contains(&"groups hold every valid episode and no void"),
        "{found:?}"
    );
}

#[test]
fn a_verdict_that_is_lost_or_committed_twice_is_found() {
    let verdict = |sample| Event::Verdict {
        episode: of(sample),
        outcome: Outcome::Resolved,
        reward: 1.0,
    };
    let twice = store();
    journal(twice.path(), 8, verdict(0));
    assert_eq!(found(twice.path()), ["committed verdicts are there once, none lost"]);
    let lost = store();
    std::fs::remove_dir_all(lost.path().join(of(0))).unwrap();
    assert!(found(lost.path()).contains(&"committed verdicts are there once, none lost"));
}

#[test]
fn a_gap_in_the_journal_is_found() {
    let dir = store();
    std::fs::remove_file(dir.path().join(paths::journal_entry(2))).unwrap();
    let found = found(dir.path());
    assert!(found.contains(&"the journal is numbered without a gap"), "{found:?}");
    assert!(
        found.contains(&"tokens were sampled by weights that had been promoted"),
        "{found:?}"
    );
}

/// Turns the iteration into one with dynamic sampling, whose batch left out a second group of two episodes.
fn dynamic_store(rewards: [f32; 2], reason: &str) -> tempfile::TempDir {
    let dir = store();
    let started = paths::journal_entry(3);
    forge(dir.path(), &started, |entry| {
        entry["tasks"] = serde_json::json!([0, 1]);
        entry["dynamic"] = serde_json::json!({"wanted": 1, "places": [0, 1]});
    });
    let mut sequence = RunFolder::open(dir.path()).unwrap().journal.len() as u64;
    let mut add = |event| {
        sequence += 1;
        journal(dir.path(), sequence, event);
    };
    for (sample, reward) in (0..).zip(rewards) {
        let outcome = if reward > 0.0 {
            Outcome::Resolved
        } else {
            Outcome::Unresolved
        };
        let (mut meta, _) = episode(sample, outcome.clone());
        meta.key.group = 1;
        let path = meta.key.dir(1);
        let ended = fixture::ended(&meta, &[fixture::look_turn()]);
        fixture::write_ended(dir.path(), &ended);
        write(dir.path(), &paths::meta(&path), &meta);
        add(Event::Verdict {
            episode: path,
            outcome,
            reward,
        });
    }
    add(Event::GroupDropped {
        iteration: 1,
        group: 1,
        valid: 2,
        reason: serde_json::from_value(reason.into()).unwrap(),
    });
    dir
}

#[test]
fn a_group_that_teaches_something_and_was_left_out_is_found_and_one_that_teaches_nothing_is_not() {
    let whole = "groups hold every valid episode and no void";
    for (rewards, reason, right) in [
        ([0.0, 0.0], "NoSignal", true),
        ([1.0, 0.0], "NoSignal", false),
        ([1.0, 0.0], "Surplus", true),
    ] {
        let dir = dynamic_store(rewards, reason);
        assert_eq!(!found(dir.path()).contains(&whole), right, "{rewards:?} {reason}");
    }
    // One more group was needed.
    let dir = dynamic_store([1.0, 0.0], "Surplus");
    forge(dir.path(), &paths::journal_entry(3), |entry| {
        entry["dynamic"]["wanted"] = 2.into()
    });
    assert!(found(dir.path()).contains(&whole));
}

#[test]
fn a_verdict_without_an_entry_is_found_unless_its_group_was_not_needed() {
    for (reason, right) in [("NoSignal", false), ("Surplus", true)] {
        let dir = dynamic_store([0.0, 0.0], reason);
        let last = RunFolder::open(dir.path()).unwrap().journal.len() as u64;
        // The entry of the drop takes the place of the last verdict's.
        std::fs::rename(
            dir.path().join(paths::journal_entry(last)),
            dir.path().join(paths::journal_entry(last - 1)),
        )
        .unwrap();
        forge(dir.path(), &paths::journal_entry(last - 1), |entry| {
            entry["sequence"] = (last - 1).into()
        });
        let lost = found(dir.path()).contains(&"committed verdicts are there once, none lost");
        assert_eq!(!lost, right, "{reason}");
    }
}

#[test]
fn an_iteration_whose_step_is_done_before_the_step_of_an_earlier_one_is_found() {
    let check = "iterations follow each other, each with one step";
    let begun = |iteration| Event::IterationStarted {
        iteration,
        weights: "a-v0".into(),
        tasks: vec![],
        dynamic: None,
    };
    let batch = |iteration| Event::BatchWritten {
        iteration,
        step: iteration,
        sha256: "00".into(),
        rows: 0,
    };
    let done = |step| Event::StepDone {
        step,
        weights: format!("a-v{step}"),
        manifest_sha256: "00".into(),
    };
    for (more, right) in [
        (vec![begun(2), batch(2), begun(3), batch(3)], true),
        (vec![begun(2), batch(2), begun(3), batch(3), done(3)], false),
    ] {
        let dir = store();
        let first = RunFolder::open(dir.path()).unwrap().journal.len() as u64 + 1;
        for (sequence, event) in (first..).zip(more) {
            journal(dir.path(), sequence, event);
        }
        assert_eq!(!found(dir.path()).contains(&check), right);
    }
}

/// Statistics of the tokens of [`store`]'s batch, whose farthest logprob is 0.25 from the engine's; and the metrics.
fn with_token_stats(dir: &Path) {
    let rows = [0, 1].map(|sample| RowSpan {
        episode: of(sample),
        from: 4 * sample as usize,
        to: 4 * sample as usize + 4,
        ..RowSpan::default()
    });
    let columns = Columns {
        logprobs: [[-0.5, -0.1, -0.75, -0.1], [f32::NAN; 4]].concat(),
        entropies: vec![0.0; 8],
        ratios: vec![1.0; 8],
        marks: vec![0; 8],
    };
    let path = dir.join(paths::token_stats(1));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, token_stats::encode(rows.to_vec(), &columns).unwrap()).unwrap();
    let metrics = StepMetrics {
        step: 1,
        updates: 1,
        logprob_gap_max: 0.25,
        ..StepMetrics::default()
    };
    write(dir, &paths::trainer_metrics(1), &metrics);
}

#[test]
fn numbers_of_tokens_that_are_not_the_batchs_or_contradict_the_metrics_are_found() {
    const CHECK: &str = "the trainer's numbers of tokens belong to the batch and agree with the step's metrics";
    let dir = store();
    with_token_stats(dir.path());
    assert!(!found(dir.path()).contains(&CHECK));
    forge(dir.path(), &paths::trainer_metrics(1), |metrics| {
        metrics["logprobGapMax"] = 1e-4.into()
    });
    assert!(found(dir.path()).contains(&CHECK));

    let dir = store();
    with_token_stats(dir.path());
    let path = dir.path().join(paths::token_stats(1));
    let (mut rows, columns) = token_stats::decode(&std::fs::read(&path).unwrap()).unwrap();
    rows.swap(0, 1);
    std::fs::write(&path, token_stats::encode(rows, &columns).unwrap()).unwrap();
    assert!(found(dir.path()).contains(&CHECK));
}
