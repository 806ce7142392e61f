use super::*;
use clap::ValueEnum;
use grpo_records::fixture::{edit_turn, episode, look_turn};
use grpo_records::{ChatPrompt, ChatTurn, VoidReason};

fn report(gain: f64, low: f64) -> SetReport {
    SetReport {
        tasks: 24,
        samples: 8,
        gain: Some(Estimate {
            value: gain,
            low,
            high: gain + 0.1,
        }),
        ..SetReport::default()
    }
}

fn is_met(report: &SetReport) -> bool {
    rows(Agent::Pdb, None, report).iter().all(Row::meets_its_bar)
}

#[test]
fn ten_points_are_enough_if_the_interval_is_above_zero() {
    assert!(is_met(&report(0.1, 0.01)));
    assert!(!is_met(&report(0.09, 0.01)));
    assert!(!is_met(&report(0.3, 0.0)));
    assert!(!is_met(&SetReport::default()), "a run without a last evaluation");
}

#[test]
fn figures_of_one_agent_do_not_replace_those_of_another() {
    let mut numbers = std::collections::BTreeSet::new();
    for agent in Agent::value_variants() {
        let rows = rows(*agent, Some(0.3), &report(0.2, 0.1));
        let of_agent: std::collections::BTreeSet<String> = rows
            .iter()
            .filter_map(|row| Some(row.figure.split_once(':')?.0.to_owned()))
            .collect();
        assert_eq!(of_agent.len(), 1, "{of_agent:?}");
        numbers.extend(of_agent);
    }
    assert_eq!(numbers.len(), 3);
}

#[test]
fn a_recording_has_resolved_and_unresolved_episodes_and_no_voids() {
    let chat = |prompt: Option<ChatPrompt>| {
        Some(ChatTurn {
            prompt,
            ..ChatTurn::default()
        })
    };
    let turns = [
        TurnRecord {
            chat: chat(Some(ChatPrompt::default())),
            ..look_turn()
        },
        TurnRecord {
            chat: chat(None),
            ..edit_turn(1, "1 failed")
        },
    ];
    let mut recording = Recording::default();
    assert_eq!(recording.rate(), None);
    let outcomes = [
        Outcome::Resolved,
        Outcome::Unresolved,
        Outcome::Unresolved,
        Outcome::void(VoidReason::SandboxLost),
        Outcome::Unresolved,
    ];
    for (sample, outcome) in (0..).zip(outcomes) {
        recording.take(&episode("a", sample, outcome).meta, &turns);
    }
    assert_eq!((recording.rows.len(), recording.rate()), (4, Some(0.25)));
    let lines = recording.lines();
    let read: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(read, recording.rows);
    assert_eq!(read[0]["resolved"], true);
    assert_eq!(read[1]["resolved"], false);
}
