use super::*;

const RUN: &str = "apiVersion: grpo.dev/v1alpha1
kind: GrpoRun
metadata: {name: demo}
spec:
  model: {image: {reference: m}}
  tasks: {train: {dataset: {image: {reference: d, path: rows.jsonl}}}}
  agent: {bash: {}}
  inference: {poolRef: {name: p}}
  sandboxes: {poolRef: {name: boxes}}
  store: {persistentVolumeClaim: {claimName: runs}}
";
const POOL: &str = "apiVersion: grpo.dev/v1alpha1
kind: SandboxPool
metadata: {name: boxes}
spec: {max: 4}
";
const OTHER: &str = "apiVersion: example.com/v1
kind: GrpoRun
metadata: {name: of-another-group}
spec: {}
";

fn parsed(text: &str, given: Option<&str>) -> Result<Manifest, String> {
    parse(text, Path::new("run.yaml"), given).map_err(|error| error.to_string())
}

#[test]
fn the_run_of_a_file_is_found_beside_its_pools_and_objects_of_other_groups() {
    let text = [POOL, OTHER, RUN].join("---\n");
    let manifest = parsed(&text, Some("team")).unwrap();
    assert_eq!(manifest.run.metadata.name.as_deref(), Some("demo"));
    assert_eq!(manifest.run.metadata.namespace.as_deref(), Some("team"));
    assert_eq!(manifest.pools[0].spec.max, 4);
}

#[test]
fn a_manifest_that_names_no_single_run_is_refused_with_the_next_step() {
    let two = [RUN, RUN].join("---\n");
    let in_team = RUN.replace("{name: demo}", "{name: demo, namespace: team}");
    for (text, given, part) in [
        (POOL, None, "has 0 GrpoRuns (grpo.dev), and exactly one is needed"),
        (two.as_str(), None, "has 2 GrpoRuns"),
        ("a: [", None, "run.yaml is no YAML"),
        (
            &RUN.replace("  store:", "  shop:"),
            None,
            "missing field `store`; `kubectl apply --dry-run=server -f run.yaml`",
        ),
        (
            &RUN.replace("name: demo", "name: De_mo"),
            None,
            "no usable metadata.name",
        ),
        (&in_team, Some("other"), "is for namespace team, and -n says other"),
    ] {
        let error = parsed(text, given).unwrap_err();
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(parsed(&in_team, Some("team")).is_ok());
}
