use super::*;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The time limit of a plan, for each example.
const LIMIT: Duration = Duration::from_secs(1);
const TRIES: usize = 5;
/// A word that no example contains.
const ELSEWHERE: &str = "namespace-of-the-example";

fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn examples() -> Vec<PathBuf> {
    let folder = here().join("../../docs/examples");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|file| file.is_file()).collect();
    files.sort_unstable();
    files
}

fn example(name: &str) -> PathBuf {
    here().join("../../docs/examples").join(name)
}

fn h100() -> Nodes {
    nodes::of_file(&here().join("tests/nodes/h100.yaml")).unwrap()
}

fn planned(file: &Path, nodes: Option<&Nodes>) -> (Report, Vec<Value>) {
    let documents = input::read(&[file.to_owned()]).unwrap();
    report_of(&documents, nodes, ELSEWHERE).unwrap()
}

fn of(yaml: &str) -> Report {
    let documents = input::parse(yaml, Path::new("run.yaml")).unwrap();
    report_of(&documents, Some(&h100()), "team").unwrap().0
}

/// The manifest of an example with this change.
fn changed(name: &str, change: impl FnOnce(&mut Value)) -> String {
    let mut run = input::read(&[example(name)]).unwrap().remove(0).value;
    change(&mut run);
    serde_yaml_ng::to_string(&run).unwrap()
}

#[test]
fn a_plan_of_every_example_has_the_objects_of_its_golden_file_in_under_a_second() {
    let nodes = h100();
    let mut seen = 0;
    for file in examples() {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let (report, objects) = planned_in_time(&file, &nodes);
        let golden = file.with_file_name("golden").join(format!("{name}.yaml"));
        let golden = std::fs::read_to_string(golden).unwrap();
        let page = grpo_operator_core::plan::plan(&name, ELSEWHERE, &objects).unwrap();
        assert_eq!(page, golden, "{name}");
        rows_are_those_of(&name, &report, &golden);
        seen += 1;
    }
    assert!(seen > 15, "only {seen} examples were found");
}

/// The plan, from the files to the table. Other tests share the processors, so the fastest of a few tries counts.
fn planned_in_time(file: &Path, nodes: &Nodes) -> (Report, Vec<Value>) {
    let mut took = Vec::new();
    for _ in 0..TRIES {
        let began = Instant::now();
        let made = planned(file, Some(nodes));
        let _ = text::text(&made.0);
        took.push(began.elapsed());
        if began.elapsed() < LIMIT {
            return made;
        }
    }
    panic!("{} took {took:?}", file.display());
}

/// Compares roles, owners, numbers and GPUs with the golden file's pods.
fn rows_are_those_of(name: &str, report: &Report, golden: &str) {
    let page: Value = serde_yaml_ng::from_str(golden).unwrap();
    type Rows = BTreeMap<(String, String), (u64, i64)>;
    let golden: Rows = page["pods"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| {
            let text = |field: &str| row[field].as_str().unwrap().to_owned();
            let numbers = (row["count"].as_u64().unwrap(), row["gpus"].as_i64().unwrap_or(0));
            ((text("of"), text("role")), numbers)
        })
        .collect();
    let rows = report.pods.iter();
    let rows: Rows = rows
        .map(|row| ((row.of.clone(), row.role.clone()), (row.count.into(), row.gpus)))
        .collect();
    assert_eq!(rows, golden, "{name}");
}

#[test]
fn no_example_has_a_problem_but_capacity_and_what_is_not_executed() {
    let nodes = h100();
    for file in examples() {
        let (report, _) = planned(&file, Some(&nodes));
        let others: Vec<&String> = report
            .problems
            .iter()
            .filter(|problem| !problem.contains("could not hold") && !problem.contains("is not executed by"))
            .collect();
        assert!(others.is_empty(), "{}: {others:?}", file.display());
    }
}

#[test]
fn a_run_on_eight_h100s_is_planned_with_memory_downloads_disk_traffic_and_places() {
    let (report, _) = planned(&example("3-remote-pool-8b.yaml"), Some(&h100()));
    let trainer = report.memory.iter().find(|row| row.each.contains("trainer")).unwrap();
    let (bytes, has) = (trainer.bytes.unwrap(), trainer.has_bytes.unwrap());
    assert!(bytes > 0 && bytes < has, "{trainer:?}");
    assert_eq!(trainer.parts.iter().map(|(_, bytes)| bytes).sum::<u64>(), bytes);
    assert_eq!(report.downloads[0].bytes, 16_000_000_000);
    let weights = &report.weights[0];
    assert_eq!(weights.version_bytes, 16_000_000_000);
    assert_eq!(
        weights.iteration_bytes,
        weights.version_bytes * u64::from(weights.pulls + 1)
    );
    let nodes = report.nodes.unwrap();
    assert_eq!((nodes.count, nodes.gpus), (10, 64));
    assert!(nodes.fits.iter().all(|fit| fit.fits), "{:?}", nodes.fits);
    let placed: usize = nodes
        .fits
        .iter()
        .flat_map(|fit| fit.places.values())
        .map(Vec::len)
        .sum();
    assert_eq!(placed, report.pods.iter().map(|row| row.count as usize).sum::<usize>());
}

#[test]
fn a_trainer_pod_with_less_memory_than_its_tensors_take_is_warned_about() {
    for (resources, has, warning) in [
        // The operator's own request is no bound.
        (serde_json::json!({"limits": {"cpu": "8"}}), None, None),
        (serde_json::json!({"requests": {"memory": "100Gi"}}), Some(100), None),
        (serde_json::json!({"limits": {"memory": "80Gi"}}), Some(80), None),
        (
            serde_json::json!({"requests": {"memory": "64Gi"}}),
            Some(64),
            Some("its memory request is 64.00 GiB"),
        ),
        (
            serde_json::json!({"requests": {"memory": "60Gi"}, "limits": {"memory": "70Gi"}}),
            Some(70),
            Some("its memory limit is 70.00 GiB"),
        ),
    ] {
        let report = of(&changed("3-remote-pool-8b.yaml", |run| {
            run["spec"]["trainer"]["resources"] = resources;
        }));
        let mut rows = report.memory.iter();
        let row = rows
            .find(|row| row.each == "each of 2 trainer pods, beside its GPUs")
            .unwrap();
        assert_eq!(row.has_bytes, has.map(|has: u64| has << 30));
        assert_eq!(
            row.parts.iter().map(|(_, bytes)| bytes).sum::<u64>(),
            row.bytes.unwrap()
        );
        let mut warnings = report.warnings.iter();
        let found = warnings.find(|said| said.contains("tensors of a trainer pod"));
        assert_eq!(found.is_some(), warning.is_some(), "{:?}", report.warnings);
        assert!(warning.is_none_or(|words| found.unwrap().contains(words)), "{found:?}");
    }
    let on_cpus = of(&changed("demo.yaml", |_| {}));
    assert!(on_cpus.memory.iter().all(|row| !row.each.contains("beside its GPUs")));
}

#[test]
fn a_run_that_asks_for_too_much_is_told_why_and_what_to_do() {
    let report = of(&changed("3-remote-pool-8b.yaml", |run| {
        run["spec"]["trainer"]["nodes"] = 16.into()
    }));
    let never = report
        .problems
        .iter()
        .find(|problem| problem.contains("could not hold"))
        .unwrap();
    assert!(never.contains("nvidia.com/gpu asked"), "{never}");
    let small = of(&changed("3-remote-pool-8b.yaml", |run| {
        run["spec"]["model"]["hub"]["repo"] = "Qwen/Qwen2.5-72B".into();
        run["spec"]["trainer"]["gpusPerNode"] = 1.into();
        run["spec"]["trainer"]["nodes"] = 1.into();
    }));
    assert!(
        small
            .problems
            .iter()
            .any(|problem| problem.contains("the trainer does not fit")),
        "{:?}",
        small.problems
    );
}

#[test]
fn what_the_api_server_or_the_operator_refuses_is_named_with_its_field() {
    let report = of(&changed("demo.yaml", |run| {
        run["spec"]["rollout"]["samples"] = 0.into()
    }));
    assert!(
        report.problems[0].contains("spec.rollout.samples"),
        "{:?}",
        report.problems
    );
    assert!(report.pods.is_empty());
    let report = of(&changed("demo.yaml", |run| {
        run["spec"]["algorithm"]["allowFrozenSampler"] = true.into();
    }));
    let refused = &report.manifests[0].not_executed;
    assert!(refused[0].contains("spec.algorithm.allowFrozenSampler"), "{refused:?}");
    assert!(!report.pods.is_empty(), "the rest is planned all the same");
}

#[test]
fn gpus_that_trainer_and_engines_share_are_counted_once_and_need_their_class() {
    let report = of(&changed("2-swe-pdb-8b.yaml", |_| {}));
    assert_eq!(report.shared_gpus, 4);
    let rows = report.pods.iter();
    let shared: BTreeMap<&str, (i64, i64)> = rows
        .map(|row| (row.role.as_str(), (row.gpus, row.shared_gpus)))
        .collect();
    assert_eq!(shared["trainer"], (0, 4));
    assert_eq!(shared["engine"], (0, 2));
    assert_eq!(shared["driver"], (0, 0));
    let class = "DeviceClass gpu.nvidia.com";
    assert!(report.needs.iter().any(|need| need == class), "{:?}", report.needs);
    assert!(
        report.warnings.iter().any(|warning| warning.contains("4 shared GPUs")),
        "{:?}",
        report.warnings
    );
    let text = text::text(&report);
    for words in [
        "4 shared",
        "and 4 GPUs, besides sandboxes",
        "each is counted once",
        class,
    ] {
        assert!(text.contains(words), "{words}:\n{text}");
    }
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["sharedGpus"], 4);
    let apart = serde_json::to_value(of(&changed("demo.yaml", |_| {}))).unwrap();
    assert_eq!(apart["sharedGpus"], Value::Null);
}

#[test]
fn objects_that_must_exist_are_listed_unless_the_manifests_have_them() {
    let run = changed("3-remote-pool-8b.yaml", |run| {
        run["spec"]["model"]["hub"]["tokenSecretRef"] = serde_json::json!({"name": "hub", "key": "token"});
    });
    let needs = of(&run).needs;
    for wanted in ["PersistentVolumeClaim runs", "Secret hub"] {
        assert!(needs.iter().any(|need| need == wanted), "{needs:?}");
    }
    let with_secret = format!("{run}---\napiVersion: v1\nkind: Secret\nmetadata: {{name: hub}}\n");
    assert!(!of(&with_secret).needs.contains(&"Secret hub".to_owned()));
}

#[test]
fn a_suspended_run_is_planned_as_it_will_be_resumed() {
    let suspended = of(&changed("demo.yaml", |run| run["spec"]["suspend"] = true.into()));
    let mut resumed = of(&changed("demo.yaml", |_| {}));
    assert!(
        suspended.warnings[0].contains("spec.suspend"),
        "{:?}",
        suspended.warnings
    );
    resumed.warnings.insert(0, suspended.warnings[0].clone());
    assert_eq!(text::text(&suspended), text::text(&resumed));
    assert!(!suspended.pods.is_empty());
}

#[test]
fn an_empty_field_and_an_external_pool_beside_its_run_are_no_problems() {
    let run = changed("3-remote-pool-8b.yaml", |run| {
        run["spec"]["resumeFrom"] = Value::Null;
        run["spec"]["inference"] = serde_json::json!({"poolRef": {"name": "served"}});
        run["spec"]["algorithm"]["allowFrozenSampler"] = true.into();
    });
    let pool = "---\napiVersion: grpo.dev/v1alpha1\nkind: InferencePool\nmetadata: {name: served}\nspec:\n  model: {hub: {repo: Qwen/Qwen3-8B}}\n  engine: {external: {url: 'https://example.com/v1'}}\n";
    let mut problems = of(&format!("{run}{pool}")).problems;
    problems.retain(|problem| !problem.contains("is not executed by"));
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
fn pods_that_are_on_the_nodes_make_a_run_wait() {
    let mut nodes = h100();
    let busy = (0..8).map(|number| {
        let pod = serde_json::json!({
            "metadata": {"name": format!("busy-{number}"), "namespace": "other"},
            "spec": {"nodeName": format!("gpu-{number}"), "containers": [
                {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8"}}},
            ]},
        });
        grpo_operator_core::admission::facts::PodNeeds::of(&serde_json::from_value(pod).unwrap())
    });
    nodes.bound = Some(busy.collect());
    let (report, _) = planned(&example("3-remote-pool-8b.yaml"), Some(&nodes));
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert!(
        report
            .warnings
            .iter()
            .any(|warning| warning.contains("begins by itself")),
        "{:?}",
        report.warnings
    );
}

#[test]
fn manifests_without_our_kinds_are_refused() {
    let documents = input::parse(
        "apiVersion: v1\nkind: Secret\nmetadata: {name: hub}\n",
        Path::new("a.yaml"),
    )
    .unwrap();
    let error = report_of(&documents, None, "team").unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no GrpoRun, InferencePool or SandboxPool (grpo.dev) in a.yaml"),
        "{error}"
    );
}
