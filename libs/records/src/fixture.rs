//! Records for tests, made by hand; and a small store of them.

#![allow(clippy::unwrap_used)]

use crate::folder::EpisodeFolder;
use crate::{
    EpisodeEnd, EpisodeKey, EpisodeMeta, EpisodeRecord, EpisodeScope, ExecSummary, GradeRecord, Message, Outcome,
    SCHEMA, TurnAction, TurnRecord, VoidReason, Writer, paths,
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
            outcome,
            end: EpisodeEnd::Submitted,
            turns: 2,
            tokens: 100,
            sampled_tokens: 40,
            format_errors: 0,
            truncated: false,
            weights: vec!["a-v0".into()],
            patch_bytes: 120,
            patch_sha256: Some("00".into()),
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
        opening: Vec::new(),
        prompt_length: 3,
        prompt: if number == 0 { vec![1, 2, 3] } else { Vec::new() },
        seed: 1,
        sampled: vec![10 + number, 2],
        logprobs: vec![-0.5, -0.1],
        weights: "a-v0".into(),
        finish: "stop".into(),
        experts: None,
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

/// Writes a store: iteration 1 with a resolved episode of two turns, an unresolved one, a void one and one without a
/// verdict, and an evaluation with one episode.
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
    write(dir, &paths::turn(&path, 0), &look_turn());
    let second = TurnRecord {
        prompt_length: 6,
        ..edit_turn(1, "1 passed")
    };
    write(dir, &paths::turn(&path, 1), &second);
    write(dir, &paths::trajectory(&path), &trajectory(&folder.meta));
    std::fs::write(dir.join(paths::patch(&path)), "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n").unwrap();
    write(dir, &paths::meta(&path), &folder.meta);
}

fn trajectory(meta: &EpisodeMeta) -> EpisodeRecord {
    let message = |role: &str, content: &str| Message {
        role: role.into(),
        content: content.into(),
        tokens: 3,
        note: None,
    };
    EpisodeRecord {
        schema: SCHEMA,
        writer: Writer::driver(1),
        run: meta.run.clone(),
        key: meta.key.clone(),
        attempt: 1,
        task: 0,
        image: "example.com/task:1".into(),
        end: meta.end,
        turns: 2,
        messages: vec![
            message("system", "You fix bugs."),
            message("user", "The loop is off by one."),
            message("assistant", "I look."),
        ],
        temperature: 1.0,
        top_p: 1.0,
        top_k: -1,
        prompt_length: 3,
        tokens: vec![1, 2, 3, 10, 2],
        mask: vec![0, 0, 0, 1, 1],
        logprobs: vec![0.0, 0.0, 0.0, -0.5, -0.1],
        weights: Vec::new(),
        experts: Vec::new(),
        truncated: false,
        started_at: 0,
        finished_at: 0,
    }
}

fn write(dir: &Path, path: &str, record: &impl serde::Serialize) {
    let file = dir.join(path);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, serde_json::to_vec(record).unwrap()).unwrap();
}
