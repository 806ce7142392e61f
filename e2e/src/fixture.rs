//! Records for unit tests, made by hand.

use crate::run_folder::EpisodeFolder;
use grpo_records::{
    EpisodeEnd, EpisodeHome, EpisodeKey, EpisodeMeta, ExecSummary, GradeRecord, Outcome, SCHEMA, TurnAction,
    TurnRecord, Writer,
};

pub fn episode(instance: &str, sample: u32, outcome: Outcome) -> EpisodeFolder {
    let key = EpisodeKey {
        home: EpisodeHome::Evaluation {
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
        prompt_length: 3,
        prompt: if number == 0 { vec![1, 2, 3] } else { Vec::new() },
        seed: 1,
        sampled: vec![10 + number, 2],
        logprobs: vec![-0.5, -0.1],
        weights: "a-v0".into(),
        finish: "stop".into(),
        text: format!("```bash\n{command}\n```"),
        action: TurnAction::Command {
            command: command.into(),
        },
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
