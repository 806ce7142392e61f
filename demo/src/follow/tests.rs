use super::*;

fn run(status: serde_json::Value) -> GrpoRun {
    let spec = serde_json::json!({
        "model": {"image": {"reference": "m"}}, "tasks": {}, "agent": {"bash": {}},
        "inference": {"poolRef": {"name": "p"}}, "sandboxes": {"poolRef": {"name": "p"}},
        "store": {"persistentVolumeClaim": {"claimName": "c"}},
    });
    let whole = serde_json::json!({
        "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun", "metadata": {"name": "demo"}, "spec": spec, "status": status,
    });
    serde_json::from_value(whole).unwrap()
}

#[test]
fn a_line_says_stage_iteration_episodes_and_rate() {
    let line = line(&run(
        serde_json::json!({"phase": "Running", "progress": {"stage": "Rollout", "iteration": 3, "iterations": 12,
        "episodesDone": 41, "episodesTotal": 64, "resolvedRate": 0.34}}),
    ));
    for part in ["Rollout", "iteration 3/12", "episodes 41/64", "resolved 34 %"] {
        assert!(line.contains(part), "{line}");
    }
}

#[test]
fn a_failed_run_is_reported_in_the_words_of_its_condition() {
    let condition = serde_json::json!({"type": "Failed", "status": "True", "reason": "ImageUnavailable",
        "message": "image x cannot be pulled", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let run = run(serde_json::json!({"phase": "Failed", "message": "less", "conditions": [condition]}));
    assert_eq!(failure(&run), "ImageUnavailable: image x cannot be pulled");
}

#[test]
fn an_episode_more_is_no_milestone_but_a_stage_is() {
    let at = |stage: &str, done: u32| {
        Milestone::of(&run(
            serde_json::json!({"phase": "Running", "progress": {"stage": stage, "episodesDone": done}}),
        ))
    };
    assert_eq!(at("Rollout", 1), at("Rollout", 2));
    assert_ne!(at("Rollout", 2), at("Training", 2));
}
