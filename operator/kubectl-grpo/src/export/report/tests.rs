use super::*;
use grpo_records::{VoidReason, fixture};

fn episode(instance: &str, sample: u32, outcome: Outcome) -> EpisodeMeta {
    let mut meta = fixture::episode("a", sample, outcome).meta;
    meta.key.instance = instance.into();
    meta.key.sample = sample;
    meta
}

#[test]
fn a_report_has_the_exported_sample_and_pass_at_k_over_all() {
    let mut report = Report::default();
    let episodes = [
        episode("b", 0, Outcome::Resolved),
        episode("b", 1, Outcome::Unresolved),
        episode("a", 0, Outcome::Unresolved),
        episode("a", 1, Outcome::Unresolved),
        episode("c", 0, Outcome::void(VoidReason::SandboxLost)),
    ];
    for meta in &episodes {
        report.judged(meta);
        if meta.key.sample == 0 {
            report.exported(meta);
        }
    }
    // A void attempt before a verdict of another attempt is not an error.
    report.exported(&episode("a", 0, Outcome::void(VoidReason::SandboxLost)));
    let results = report.results();
    let lines: Vec<Value> = results
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let ids: Vec<&Value> = lines.iter().map(|line| &line["instance_id"]).collect();
    assert_eq!(ids, ["a", "b"]);
    let keys: Vec<&String> = lines[0].as_object().unwrap().keys().collect();
    let mut wanted = vec![
        "instance_id",
        "resolved",
        "exit_status",
        "patch_source",
        "n_steps",
        "error",
        "elapsed",
        "run_dir",
    ];
    wanted.sort_unstable();
    assert_eq!(keys, wanted);

    let summary = report.summary("evaluation of fixed under a-v0", 0);
    let told = |key: &str| summary[key].clone();
    assert_eq!(
        (told("total"), told("resolved"), told("errors")),
        (json!(3), json!(1), json!(1))
    );
    assert_eq!(told("resolve_rate"), json!(0.5));
    let pass_at = told("pass_at_k");
    // Task a: 0 of 2, task b: 1 of 2.
    assert_eq!((&pass_at[0]["k"], &pass_at[0]["rate"]), (&json!(1), &json!(0.25)));
    assert_eq!((&pass_at[1]["k"], &pass_at[1]["rate"]), (&json!(2), &json!(0.5)));
}

#[test]
fn an_empty_report_is_one() {
    let report = Report::default();
    assert_eq!(report.results(), "");
    let summary = report.summary("", 0);
    assert_eq!((&summary["total"], &summary["resolve_rate"]), (&json!(0), &json!(0.0)));
}
