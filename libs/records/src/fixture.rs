//! Records for tests, made by hand; and a small store of them.

#![allow(clippy::unwrap_used)]

use crate::episode::TestCounts;
use crate::folder::EpisodeFolder;
use crate::judged::{score_of, vote_of};
use crate::reward::{Cost, Shaping};
use crate::store::sha256_hex;
use crate::token_stats::{self, CLIPPED, COMPUTED, Columns, RowSpan};
use crate::{
    Batch, EndedEpisode, EpisodeEnd, EpisodeKey, EpisodeMeta, EpisodeRecord, EpisodeScope, Event, ExecSummary,
    GradeRecord, IterationRecord, JournalEntry, JudgedTurn, Message, Outcome, ProcessRule, ProcessScores, RewardAnswer,
    RewardRule, RowsFile, RunAgent, SCHEMA, StepMetrics, StoredRow, StoredRows, TokenRow, TurnAction, TurnRecord,
    TurnScore, VoidReason, Vote, WeightsSpan, Writer, paths, rows,
};
use std::path::Path;

pub fn episode(instance: &str, sample: u32, outcome: Outcome) -> EpisodeFolder {
    let key = EpisodeKey {
        scope: EpisodeScope::Evaluation {
            set: "heldout".into(),
            weights: "a-v0".into(),
        },
        instance: instance.into(),
        group: 0,
        sample,
    };
    EpisodeFolder {
        path: key.dir(1),
        meta: EpisodeMeta {
            schema: SCHEMA,
            writer: Writer::driver(1),
            run: "uid".into(),
            key,
            attempt: 1,
            reward: outcome
                .is_verdict()
                .then(|| f32::from(u8::from(outcome == Outcome::Resolved))),
            process: None,
            outcome,
            end: EpisodeEnd::Submitted,
            turns: 2,
            tokens: 100,
            sampled_tokens: 40,
            format_errors: 0,
            truncated: false,
            weights: vec!["a-v0".into()],
            untrainable: false,
            patch_bytes: 120,
            patch_sha256: Some("00".into()),
            graded: None,
            grade: Some(GradeRecord {
                status: "Judged".into(),
                tries: 1,
                ..GradeRecord::default()
            }),
            message: None,
            agent_millis: 1,
            grade_millis: 1,
            waited_millis: 0,
            at: 0,
        },
    }
}

pub fn turn(number: u32, command: &str, output: &str) -> TurnRecord {
    TurnRecord {
        schema: SCHEMA,
        writer: Writer::driver(1),
        episode: "a__g0__i0".into(),
        turn: number,
        lease: "l".into(),
        omitted: None,
        opening: Vec::new(),
        row: 0,
        prompt_length: 3,
        sampled_length: 2,
        observation_length: 1,
        prompt: if number == 0 { vec![1, 2, 3] } else { Vec::new() },
        seed: 1,
        sampled: vec![10 + number, 2],
        logprobs: vec![-0.5, -0.1],
        weights: "a-v0".into(),
        finish: "stop".into(),
        experts: None,
        request: None,
        chat: None,
        text: format!("```bash\n{command}\n```"),
        action: TurnAction::command(command),
        exec: Some(ExecSummary {
            exec: format!("e{number}"),
            exit_code: Some(0),
            signal: None,
            timed_out: false,
            killed: None,
            output_bytes: output.len() as u64,
            omitted_bytes: 0,
            duration_millis: 5,
        }),
        observation: vec![20 + number],
        observation_text: output.into(),
        memory: Default::default(),
        end: None,
        sample_millis: 1,
        exec_millis: 1,
        waited_millis: 0,
        at: 0,
    }
}

pub fn look_turn() -> TurnRecord {
    turn(0, "grep -n '' $F | sed -n '1,9p'", "1:if a:")
}

pub fn edit_turn(number: u32, verdict: &str) -> TurnRecord {
    turn(number, "sed -i '1,9s/a/b/' $F; sh t", verdict)
}

/// Writes a store: iteration 1 (a resolved, an unresolved, a void and an unfinished episode) and an evaluation of one.
pub fn write_store(dir: &Path) {
    let outcomes = [
        Outcome::Resolved,
        Outcome::Unresolved,
        Outcome::void(VoidReason::SandboxLost),
    ];
    let iteration = EpisodeScope::Iteration { iteration: 1 };
    for (sample, outcome) in (0..).zip(outcomes) {
        write_episode(dir, iteration.clone(), sample, outcome);
    }
    let unfinished = paths::episode(&iteration, "psf__requests-1__g0__i3", 1);
    write(dir, &paths::turn(&unfinished, 0), &look_turn());
    let heldout = EpisodeScope::Evaluation {
        set: "heldout".into(),
        weights: "a-v0".into(),
    };
    write_episode(dir, heldout, 0, Outcome::Resolved);
}

fn write_episode(dir: &Path, scope: EpisodeScope, sample: u32, outcome: Outcome) {
    let mut folder = episode("psf__requests-1", sample, outcome);
    folder.meta.key.scope = scope;
    let path = folder.meta.key.dir(1);
    let message = |role: &str, content: &str, tokens| Message {
        role: role.into(),
        content: content.into(),
        tokens,
        note: None,
    };
    let first = TurnRecord {
        opening: vec![
            message("system", "You fix bugs.", 0),
            message("user", "The loop is off by one.", 3),
        ],
        ..look_turn()
    };
    let second = TurnRecord {
        prompt_length: 6,
        ..edit_turn(1, "1 passed")
    };
    write_ended(dir, &ended(&folder.meta, &[first, second]));
    std::fs::write(dir.join(paths::patch(&path)), "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n").unwrap();
    write(dir, &paths::meta(&path), &folder.meta);
}

/// The episode of [`write_store`] that was resolved in iteration 1.
pub const RESOLVED: &str = "rollouts/iter-000001/psf__requests-1__g0__i0";

fn write_entry(dir: &Path, sequence: u64, at: i64, event: Event) {
    let entry = JournalEntry {
        schema: SCHEMA,
        writer: Writer::driver(1),
        sequence,
        at,
        event,
    };
    write(dir, &paths::journal_entry(sequence), &entry);
}

/// Adds a shaped reward, a reward service and a judge to the run of [`write_store`], and their answers to [`RESOLVED`].
pub fn write_rewards(dir: &Path) {
    let cost = |each, most| Cost { each, most };
    let started = Event::RunStarted {
        run: "uid".into(),
        namespace: "team".into(),
        name: "demo".into(),
        seed: 1,
        tasks_sha256: String::new(),
        tasks: 1,
        agent: RunAgent::default(),
        rows_per_turn: false,
        process: Some(ProcessRule {
            coefficient: 0.5,
            min_votes: 1,
            step_wise: false,
        }),
        reward: Some(RewardRule {
            resolved: 1.0,
            unresolved: 0.0,
            shaping: Some(Shaping {
                pass_ratio: 0.5,
                turns: cost(0.05, 0.5),
                calls: vec![("rewrite".into(), cost(0.1, 0.5))],
                patch_lines: cost(0.01, 0.2),
                low: Some(0.0),
                high: None,
            }),
            asks: true,
        }),
        sets_sha256: None,
        inputs_sha256: None,
    };
    write_entry(dir, 1, 0, started);
    let said = |text: &str| Vote {
        seed: 7,
        text: text.into(),
        vote: vote_of(text),
        millis: 350,
        ..Vote::default()
    };
    let lost = Vote {
        lost: Some("10.0.0.7:8000: 503 Service Unavailable".into()),
        millis: 20_000,
        ..Vote::default()
    };
    let votes = [
        vec![said("It only looks. \\boxed{-1}"), said("I cannot say."), lost],
        vec![
            said("It mends the loop. \\boxed{1}"),
            said("\\boxed{1}"),
            said("\\boxed{1}"),
        ],
    ];
    let mut scores = Vec::new();
    for (turn, votes) in (0..).zip(votes) {
        let score = score_of(&votes, 1);
        let judged = JudgedTurn {
            schema: SCHEMA,
            writer: Writer::driver(1),
            episode: "psf__requests-1__g0__i0".into(),
            turn,
            prompt_sha256: String::new(),
            votes,
            score,
            at: 0,
        };
        write(dir, &paths::judged(RESOLVED, turn), &judged);
        scores.push(TurnScore { turn, score });
    }
    let file = dir.join(paths::meta(RESOLVED));
    let mut meta: EpisodeMeta = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let passed = |passed, failed| TestCounts { passed, failed };
    if let Some(grade) = &mut meta.grade {
        (grade.fail_to_pass, grade.pass_to_pass) = (passed(1, 0), passed(3, 0));
    }
    let answer = RewardAnswer {
        schema: SCHEMA,
        writer: Writer::driver(1),
        episode: meta.key.name(),
        outcome: meta.outcome.clone(),
        grade: meta.grade.clone(),
        by_rule: 1.38,
        reward: 1.25,
        note: Some("a clean patch".into()),
        refused: None,
        at: 0,
    };
    write(dir, &paths::reward(RESOLVED), &answer);
    let process = ProcessScores {
        outcome: 1.25,
        turns: scores,
    };
    meta.reward = Some(process.reward(0.5));
    meta.process = Some(process);
    write(dir, &paths::meta(RESOLVED), &meta);
}

/// Writes the journal and the metrics of the run of [`write_store`]: two drivers, an evaluation, an iteration with its
/// step, and the run's end.
pub fn write_journal(dir: &Path) {
    let iteration = EpisodeScope::Iteration { iteration: 1 };
    let heldout = EpisodeScope::Evaluation {
        set: "heldout".into(),
        weights: "a-v0".into(),
    };
    let folder =
        |scope: &EpisodeScope, sample: u32| paths::episode(scope, &format!("psf__requests-1__g0__i{sample}"), 1);
    let verdict = |scope: &EpisodeScope, sample, outcome, reward| Event::Verdict {
        episode: folder(scope, sample),
        outcome,
        reward,
    };
    let promoted = |weights: &str, step| Event::Promoted {
        weights: weights.into(),
        manifest_sha256: "0".repeat(64),
        step,
    };
    let events = [
        Event::RunStarted {
            run: "uid".into(),
            namespace: "team".into(),
            name: "demo".into(),
            seed: 1,
            tasks_sha256: String::new(),
            tasks: 1,
            agent: RunAgent::default(),
            rows_per_turn: false,
            process: None,
            reward: None,
            sets_sha256: None,
            inputs_sha256: None,
        },
        Event::DriverStarted { epoch: 1 },
        promoted("a-v0", 0),
        verdict(&heldout, 0, Outcome::Resolved, 1.0),
        Event::EvaluationDone {
            set: "heldout".into(),
            weights: "a-v0".into(),
            resolved: 1,
            episodes: 1,
            voids: 0,
        },
        Event::IterationStarted {
            iteration: 1,
            weights: "a-v0".into(),
            tasks: vec![0],
            dynamic: None,
        },
        verdict(&iteration, 0, Outcome::Resolved, 1.0),
        Event::DriverStarted { epoch: 2 },
        verdict(&iteration, 1, Outcome::Unresolved, 0.0),
        Event::EpisodeVoided {
            episode: folder(&iteration, 2),
            reason: VoidReason::SandboxLost,
            turns: 2,
            tokens: 100,
            message: "node n1 is gone".into(),
        },
        Event::BatchWritten {
            iteration: 1,
            step: 1,
            sha256: "0".repeat(64),
            rows: 2,
        },
        Event::StepDone {
            step: 1,
            weights: "a-v1".into(),
            manifest_sha256: "1".repeat(64),
        },
        promoted("a-v1", 1),
        Event::RunFinished {
            succeeded: true,
            reason: None,
            message: None,
        },
    ];
    for (sequence, event) in (1..).zip(events) {
        write_entry(dir, sequence, 1000 + sequence as i64, event);
    }
    let metas = [Outcome::Resolved, Outcome::Unresolved].map(|outcome| episode("psf__requests-1", 0, outcome).meta);
    let record = IterationRecord::of(Writer::driver(1), 1, "a-v0".into(), &metas);
    write(dir, &paths::driver_metrics(1), &record);
    let step = StepMetrics {
        step: 1,
        weights: "a-v1".into(),
        loss: 0.25,
        advantages: vec![vec![0.5, -0.5]],
        staleness_max: 0,
        ..StepMetrics::default()
    };
    write(dir, &paths::trainer_metrics(1), &step);
    write_bytes(dir, &paths::token_stats(1), &token_stats());
}

/// The statistics of the step of [`write_journal`]: the resolved episode was trained on, and its second token was
/// clipped; the other one was not.
fn token_stats() -> Vec<u8> {
    let row = |sample: u32, advantage, from| RowSpan {
        episode: format!("rollouts/iter-000001/psf__requests-1__g0__i{sample}"),
        advantage,
        from,
        to: from + 4,
        ..RowSpan::default()
    };
    let with_nan = |values: [f32; 4]| [values, [f32::NAN; 4]].concat();
    let columns = Columns {
        logprobs: with_nan([-0.5, -0.125, -0.5, -0.1]),
        entropies: with_nan([0.75, 0.25, 0.5, 0.5]),
        ratios: with_nan([1.0, 1.5, 1.0, 1.0]),
        marks: vec![COMPUTED, COMPUTED | CLIPPED, COMPUTED, COMPUTED, 0, 0, 0, 0],
    };
    token_stats::encode(vec![row(0, Some(0.5), 0), row(1, None, 4)], &columns).unwrap()
}

/// The episode that consists of these turns.
pub fn ended(meta: &EpisodeMeta, turns: &[TurnRecord]) -> EndedEpisode {
    let mut rows: Vec<TokenRow> = Vec::new();
    for turn in turns {
        if turn.row as usize == rows.len() {
            rows.push(TokenRow::default());
        }
        let row = &mut rows[turn.row as usize];
        let mut add = |ids: &[u32], mask: u8| {
            row.tokens.extend(ids);
            row.mask.resize(row.tokens.len(), mask);
            row.logprobs.resize(row.tokens.len(), 0.0);
        };
        add(&turn.prompt, 0);
        add(&turn.sampled, 1);
        let (from, to) = (turn.prompt_length, turn.prompt_length + turn.sampled.len());
        add(&turn.observation, 0);
        row.logprobs[from..to].copy_from_slice(&turn.logprobs);
        row.turns.push(turn.turn);
        row.weights.push(WeightsSpan {
            from,
            to,
            version: turn.weights.clone(),
        });
    }
    let record = EpisodeRecord {
        schema: SCHEMA,
        writer: Writer::driver(1),
        run: meta.run.clone(),
        key: meta.key.clone(),
        attempt: meta.attempt,
        task: 0,
        image: "example.com/task:1".into(),
        end: meta.end,
        aborted: None,
        patch_too_large: false,
        turns: turns.iter().map(TurnRecord::without_ids).collect(),
        process: None,
        rows: (!rows.is_empty()).then(|| RowsFile {
            sha256: sha256_hex(&rows::encode(&rows).unwrap()),
            rows: rows.len(),
            tokens: rows.iter().map(|row| row.tokens.len()).sum(),
        }),
        temperature: 1.0,
        top_p: 1.0,
        top_k: -1,
        truncated: false,
        started_at: 0,
        finished_at: 0,
    };
    EndedEpisode { record, rows }
}

/// Writes record and rows of an episode.
pub fn write_ended(dir: &Path, episode: &EndedEpisode) {
    let path = episode.record.key.dir(episode.record.attempt);
    write(dir, &paths::trajectory(&path), &episode.record);
    if episode.record.rows.is_some() {
        write_bytes(dir, &paths::rows(&path), &rows::encode(&episode.rows).unwrap());
    }
}

/// Writes a batch, and its rows as episodes; sets the rows' locations in the batch.
pub fn write_batch(dir: &Path, batch: &mut Batch) {
    let mut episodes: Vec<(String, Vec<usize>)> = Vec::new();
    for (at, row) in batch.rows.iter().enumerate() {
        match episodes.last_mut() {
            Some((name, rows)) if *name == row.episode => rows.push(at),
            _ => episodes.push((row.episode.clone(), vec![at])),
        }
    }
    let scope = EpisodeScope::Iteration { iteration: batch.step };
    for (name, at) in episodes {
        let rows = at.iter().map(|at| &batch.rows[*at]).map(|row| TokenRow {
            tokens: row.tokens.clone(),
            mask: row.mask.clone(),
            logprobs: row.logprobs.clone(),
            weights: row.weights.clone(),
            experts: row.experts.clone(),
            turns: row.turn.into_iter().collect(),
        });
        let bytes = rows::encode(&rows.collect::<Vec<_>>()).unwrap();
        let file = paths::rows(&paths::episode(&scope, &name, 1));
        write_bytes(dir, &file, &bytes);
        let sha256 = sha256_hex(&bytes);
        let rows = StoredRows { file, sha256 };
        for (row, at) in (0..).zip(at) {
            batch.rows[at].stored = StoredRow {
                rows: rows.clone(),
                row,
                answer: None,
            };
        }
    }
    write(dir, &paths::batch(batch.step), batch);
}

fn write(dir: &Path, path: &str, record: &impl serde::Serialize) {
    write_bytes(dir, path, &serde_json::to_vec(record).unwrap());
}

fn write_bytes(dir: &Path, path: &str, bytes: &[u8]) {
    let file = dir.join(path);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, bytes).unwrap();
}
