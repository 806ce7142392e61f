//! The screens of statuses as the operator writes them. The operator's tests wrote the YAML files
//! (`grpo_run/screens_tests.rs`), these tests write the texts, and the book includes the texts.
//!
//! `UPDATE_SCREENS=1 cargo test -p kubectl-grpo --test screens` writes them again.

#![allow(clippy::unwrap_used)]

use clap::Parser;
use grpo_crds::GrpoRun;
use grpo_records::look::Records;
use grpo_records::show::{self, Detail};
use grpo_records::validation::{Finding, TaskValidation, TrialEnd, id_list};
use grpo_records::{SCHEMA, Writer, fixture, paths};
use jiff::Timestamp;
use kubectl_grpo::arguments::tools::Form;
use kubectl_grpo::arguments::{Arguments, Part, Wanted, What};
use kubectl_grpo::plan::nodes::{self, Nodes};
use kubectl_grpo::plan::{self, input};
use kubectl_grpo::prepull::pulls::{self, State};
use kubectl_grpo::prepull::report;
use kubectl_grpo::records::Source;
use kubectl_grpo::tasks::sets::{self, TaskSet};
use kubectl_grpo::{copy, episodes, status, validated};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

const MADE: &str = "2025-12-31T23:59:59Z";
const NOW: &str = "2026-01-01T00:04:12Z";
const PAGE: &str = "docs/src/kubectl-grpo.md";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn screens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/screens")
}

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

/// The GrpoRun of an example, with the status of a screen.
fn run(screen: &str) -> GrpoRun {
    let text = std::fs::read_to_string(screens().join(screen).with_extension("yaml")).unwrap();
    let mut wanted: Value = serde_yaml_ng::from_str(&text).unwrap();
    let example = root().join("docs/examples").join(wanted["example"].as_str().unwrap());
    let manifest = std::fs::read_to_string(example).unwrap();
    let mut documents = manifest
        .split("\n---\n")
        .map(|text| serde_yaml_ng::from_str::<Value>(text).unwrap());
    let mut run = documents.find(|document| document["kind"] == "GrpoRun").unwrap();
    if let Some(more) = wanted["spec"].as_object_mut() {
        run["spec"].as_object_mut().unwrap().append(more);
    }
    run["metadata"]["namespace"] = "team".into();
    run["metadata"]["creationTimestamp"] = MADE.into();
    run["metadata"]["generation"] = 1.into();
    run["status"] = wanted["status"].take();
    serde_json::from_value(run).unwrap()
}

fn shown_as(screen: &str, text: &str) {
    let file = screens().join(screen).with_extension("txt");
    if std::env::var_os("UPDATE_SCREENS").is_some() {
        std::fs::write(&file, text).unwrap();
    }
    let known = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(
        text,
        known,
        "{} is not what is shown; UPDATE_SCREENS=1 writes it anew",
        file.display()
    );
}

/// Shows a waiting run, and looks for the necessary facts: which thing, how many, where, and the next step.
fn waiting(screen: &str, needed: &[&str]) {
    let text = status::screen(&run(screen), now());
    shown_as(screen, &text);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in needed {
        assert!(words.contains(part), "{part:?} is missing in:\n{text}");
    }
}

#[test]
fn a_run_that_waits_for_gpus_says_how_many_are_missing_where_and_what_to_do() {
    waiting(
        "gpus",
        &[
            "It has waited 4m12s for GPUs",
            "8 nvidia.com/gpu asked, 3 free",
            "node-c 3 of 8",
            "end or suspend other runs",
        ],
    );
}

#[test]
fn a_run_that_waits_for_an_image_names_it_its_pod_and_what_to_do() {
    waiting(
        "image",
        &[
            "It has waited 4m12s for an image",
            "grpo.dev/demo/model:1",
            "pod demo-driver-1-0",
            "Correct the name",
        ],
    );
}

#[test]
fn a_run_that_waits_for_a_claim_names_it_and_its_namespace() {
    waiting(
        "claim",
        &[
            "It has waited 4m12s for a volume claim",
            "no PersistentVolumeClaim runs in namespace team",
            "create it",
        ],
    );
}

#[test]
fn a_run_that_waits_for_quota_names_the_queue_and_who_tells_more() {
    waiting(
        "quota",
        &[
            "It has waited 4m12s for quota",
            "LocalQueue gpus of namespace team",
            "kubectl describe workloads.kueue.x-k8s.io",
        ],
    );
}

#[test]
fn a_running_run_shows_bars_numbers_objective_and_plan() {
    let text = status::screen(&run("running"), now());
    shown_as("running", &text);
    assert!(!text.contains("waited"), "{text}");
    assert!(
        text.contains("8/12") && text.contains("41/64") && text.contains("resolved 0.62"),
        "{text}"
    );
}

#[test]
fn a_failed_run_says_why_and_where_its_last_words_are() {
    let text = status::screen(&run("failed"), now());
    shown_as("failed", &text);
    assert!(
        text.contains("It failed: NoValidEpisodes") && text.contains("kubectl grpo logs demo -n team"),
        "{text}"
    );
}

#[test]
fn a_run_that_validated_says_how_many_tasks_are_fit_and_where_the_list_is() {
    let run = run("validate");
    let text = status::screen(&run, now());
    shown_as("validate", &text);
    for part in ["117 of 120 tasks are fit", "kubectl grpo validated demo -n team"] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
    for part in ["iteration", "episodes", "engine", "trainer"] {
        assert!(
            !text.contains(part),
            "{part:?} has no meaning in mode Validate:\n{text}"
        );
    }
    assert!(!status::overview(&[run], false, now()).contains(" 0/12 "));
}

#[tokio::test]
async fn the_list_of_a_validated_set_has_the_fit_tasks_and_names_the_others_as_comments() {
    let found = |instance: &str, findings: Vec<Finding>| TaskValidation {
        schema: SCHEMA,
        writer: Writer::driver(1),
        set: "train".into(),
        instance: instance.into(),
        graded: None,
        findings,
        gold: Vec::new(),
        empty: Vec::new(),
        at: 0,
    };
    let (patch, ends) = (
        "the gold patch".into(),
        vec![TrialEnd::Resolved, TrialEnd::Unresolved, TrialEnd::Resolved],
    );
    let (count, newest) = (3, "1f0c9d2 Fix the encoding of headers".into());
    let tasks = [
        found("psf__requests-1142", vec![]),
        found("psf__requests-1724", vec![Finding::Flaky { patch, ends }]),
        found("psf__requests-1766", vec![Finding::EmptyPasses { trials: 3 }]),
        found("psf__requests-1921", vec![]),
        found("psf__requests-2317", vec![Finding::LaterCommits { count, newest }]),
    ];
    let dir = tempfile::tempdir().unwrap();
    for folder in [paths::JOURNAL, paths::VALIDATION] {
        std::fs::create_dir_all(dir.path().join(folder)).unwrap();
    }
    let list = id_list("train", &tasks);
    std::fs::write(dir.path().join(paths::validated_ids("train")), list).unwrap();
    let mut source = Source::Folder(Records::open(dir.path()).unwrap());
    shown_as(
        "validated",
        &validated::list(&mut source, "check", "train").await.unwrap(),
    );
}

#[test]
fn all_runs_are_a_table_that_says_what_each_waits_for() {
    let renamed = |screen: &str, name: &str| {
        let mut run = run(screen);
        run.metadata.name = Some(name.into());
        run
    };
    let runs = [
        renamed("running", "demo"),
        renamed("gpus", "swe-pdb-8b"),
        renamed("claim", "swe-pdb-8b-b"),
        renamed("failed", "broken"),
    ];
    shown_as("runs", &status::overview(&runs, false, now()));
    assert!(status::overview(&runs, true, now()).starts_with("NAMESPACE"));
}

#[test]
fn a_run_nobody_has_looked_at_says_so() {
    let mut run = run("running");
    run.status = None;
    let text = status::screen(&run, now());
    assert!(
        text.contains("not looked at yet") && text.contains("whether the operator runs"),
        "{text}"
    );
}

#[test]
fn a_status_cannot_command_the_terminal() {
    let mut run = run("claim");
    let status = run.status.as_mut().unwrap();
    status.conditions[0].message = "\u{1b}]0;owned\u{7}".into();
    assert!(!status::screen(&run, now()).contains('\u{1b}'));
}

#[tokio::test]
async fn episodes_are_a_table_with_outcome_turns_tokens_and_weights() {
    let dir = tempfile::tempdir().unwrap();
    fixture::write_store(dir.path());
    let mut source = Source::Folder(Records::open(dir.path()).unwrap());
    let newest = episodes::list(&mut source, &Part::default(), &[], 200).await.unwrap();
    shown_as("episodes", &episodes::text(&newest));
    let only = |wanted| [wanted];
    let resolved = episodes::list(&mut source, &Part::default(), &only(Wanted::Resolved), 200)
        .await
        .unwrap();
    assert_eq!(resolved.episodes.len(), 1);
    let two = episodes::list(&mut source, &Part::default(), &[], 2).await.unwrap();
    assert!(two.cut && episodes::text(&two).contains("only 2 are shown"));
}

#[tokio::test]
async fn an_episode_is_found_by_part_of_its_name_and_shown_turn_by_turn() {
    let dir = tempfile::tempdir().unwrap();
    fixture::write_store(dir.path());
    fixture::write_rewards(dir.path());
    let records = Records::open(dir.path()).unwrap();
    let mut source = Source::Folder(records.clone());
    let in_iteration = Part {
        iteration: Some(1),
        ..Part::default()
    };
    let path = episodes::find(&mut source, &in_iteration, "g0__i0").await.unwrap();
    assert_eq!(path, "rollouts/iter-000001/psf__requests-1__g0__i0");
    let (turns, judged) = source.turns_and_votes(&path).await.unwrap();
    let view = records.episode(&path).unwrap();
    let with = |votes| {
        let detail = Detail { tokens: false, votes };
        show::text(&view, &turns, &judged, detail)
    };
    shown_as("show", &with(false));
    assert!(with(true).contains("--- vote 0: +1 in 350 ms\n  It mends the loop."));
    let several = episodes::find(&mut source, &in_iteration, "requests")
        .await
        .unwrap_err()
        .to_string();
    assert!(
        several.contains("4 episodes") && several.contains("say more"),
        "{several}"
    );
    let none = episodes::find(&mut source, &Part::default(), "django")
        .await
        .unwrap_err()
        .to_string();
    assert!(none.contains("iteration 1; set heldout (a-v0)"), "{none}");
}

fn task_sets() -> Vec<TaskSet> {
    let row = |id: &str, image: &str| json!({"instance_id": id, "image": image});
    let set = |report: Value, rows: Vec<Value>| TaskSet {
        report: serde_json::from_value(report).unwrap(),
        rows: Some(rows),
    };
    let skipped = json!([
        {"instance": "django__django-1", "place": "test.jsonl line 3",
         "cause": "field version: swebench 4 has no test command for version 9.9 of django/django"},
        {"instance": "sympy__sympy-2", "place": "test.jsonl line 7", "cause": "field test_patch: missing"},
        {"place": "test.jsonl line 9", "cause": "field instance_id: missing"},
    ]);
    let train = json!({"set": "train", "format": "Auto", "rows": {"Compiled": 1, "SweBench": 2}, "tasks": 3, "skipped": skipped});
    let heldout =
        json!({"set": "evaluate.heldout", "format": "SweBench", "rows": {"SweBench": 1}, "tasks": 1, "skipped": []});
    let image = |id: &str| format!("swebench/sweb.eval.x86_64.{id}:latest");
    vec![
        set(train, ["a", "b", "b"].map(|id| row(id, &image(id))).into()),
        set(heldout, vec![row("c", &image("c"))]),
    ]
}

#[test]
fn tasks_are_a_table_with_the_skipped_rows_and_their_causes() {
    let text = sets::shown(&task_sets(), Form::Table, None);
    shown_as("tasks", &text);
    assert!(
        !text.contains('\u{1b}') && text.contains("field test_patch: missing"),
        "{text}"
    );
}

#[test]
fn pulls_are_a_line_of_progress_and_then_a_table_of_failures() {
    let at = Duration::from_secs;
    let nodes = ["node-a", "node-b", "node-c"].map(str::to_owned);
    let images = [
        "swebench/sweb.eval.x86_64.a:latest",
        "swebench/sweb.eval.x86_64.b:latest",
    ]
    .map(str::to_owned);
    let mut pulls = pulls::wanted(&nodes, &images);
    pulls[0].state = State::Pulled;
    for (number, since) in [(1, 10), (2, 3), (3, 70)] {
        pulls[number].state = State::Pulling {
            attempt: 1,
            pod: format!("prepull-1f-{number}-1"),
            since: at(since),
        };
    }
    shown_as("prepull-progress", &(report::progress(&pulls, at(75)) + "\n"));
    pulls.iter_mut().for_each(|pull| pull.state = State::Pulled);
    pulls[4].state = State::Failed {
        attempts: 6,
        message: "Back-off pulling image \"swebench/sweb.eval.x86_64.b:latest\": ErrImagePull: not found".into(),
    };
    shown_as("prepull", &report::result(&pulls, at(312)));
}

#[tokio::test]
async fn a_copy_says_what_it_brought_and_what_was_there() {
    let (store, dest) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fixture::write_store(store.path());
    let mut source = Source::Folder(Records::open(store.path()).unwrap());
    let asked = format!("grpo copy demo {}", dest.path().display());
    let What::Copy(asked) = Arguments::try_parse_from(asked.split_whitespace()).unwrap().what else {
        panic!("{asked}");
    };
    let done = copy::copy(&mut source, &asked).await.unwrap();
    assert_eq!(done.kept, 0);
    shown_as("copy", &done.in_words(Path::new("out/demo")));
}

#[test]
fn a_plan_names_pods_memory_downloads_disk_and_nodes() {
    let documents = input::read(&[root().join("docs/examples/3-remote-pool-8b.yaml")]).unwrap();
    let nodes = nodes::of_file(&screens().join("../nodes/h100.yaml")).unwrap();
    let nodes = Nodes {
        from: "nodes.yaml".to_owned(),
        ..nodes
    };
    let (mut report, _) = plan::report_of(&documents, Some(&nodes), "team").unwrap();
    report.manifests[0].file = "docs/examples/3-remote-pool-8b.yaml".to_owned();
    shown_as("plan", &plan::text::text(&report));
}

#[test]
fn a_reason_is_explained_by_cause_next_step_and_command() {
    let text = kubectl_grpo::explain::explain(Some("StoreMissing")).unwrap();
    shown_as("explain", &text);
}

#[test]
fn two_runs_are_compared_by_fields_that_differ_and_by_results() {
    let (mut first, mut second) = (run("running"), run("running"));
    first.metadata.name = Some("first".into());
    second.metadata.name = Some("second".into());
    second.spec.seed = 1;
    second.spec.algorithm.learning_rate = 4e-4;
    let progress = second
        .status
        .as_mut()
        .and_then(|status| status.progress.as_mut())
        .unwrap();
    progress.reward = Some(0.5);
    shown_as("compare", &kubectl_grpo::compare::screen(&[first, second]));
}

#[test]
fn the_book_shows_every_screen() {
    let page = std::fs::read_to_string(root().join(PAGE)).unwrap();
    for entry in std::fs::read_dir(screens()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".txt") {
            let include = format!("{{{{#include ../../operator/kubectl-grpo/tests/screens/{name}}}}}");
            assert!(page.contains(&include), "{PAGE} does not include {name}");
        }
    }
}
