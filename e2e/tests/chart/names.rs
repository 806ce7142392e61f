//! Names and versions that a cluster chooses, and that YAML or a label takes for something else.

use std::collections::BTreeSet;
use std::process::Command;

use super::of_kind;
use crate::support::Result;
use grpo_testing::chart;
use grpo_testing::cluster::cache;
use serde_json::json;

#[test]
#[ignore = "needs helm: make test-api"]
fn names_that_yaml_reads_as_numbers_stay_names() -> Result<()> {
    let rendered = chart::render_in(
        "123",
        &json!({
            "watchNamespace": "404",
            "priorityClassName": "77",
            "monitoring": {"podMonitors": {"enabled": true}, "rules": {"enabled": true}, "dashboards": {"enabled": true}},
        }),
    )?;
    for object in &rendered {
        let (kind, namespace) = (&object["kind"], &object["metadata"]["namespace"]);
        let is_name = namespace == "123" || namespace == "404";
        assert!(namespace.is_null() || is_name, "{kind}: {namespace}");
        for subject in object["subjects"].as_array().into_iter().flatten() {
            assert_eq!(subject["namespace"], "123", "{kind}");
        }
    }
    let bindings = of_kind(&rendered, "ValidatingAdmissionPolicyBinding");
    assert_eq!(bindings.len(), 3);
    for binding in bindings {
        let labels = &binding["spec"]["matchResources"]["namespaceSelector"]["matchLabels"];
        assert_eq!(labels["kubernetes.io/metadata.name"], "404");
    }
    let pod = &of_kind(&rendered, "Deployment")[0]["spec"]["template"]["spec"];
    assert_eq!(pod["priorityClassName"], "77");
    Ok(())
}

/// Flux adds the digest of a chart to its version, after a +, which labels may not contain.
#[test]
#[ignore = "needs helm: make test-api"]
fn a_version_with_build_metadata_gives_valid_labels() -> Result<()> {
    const VERSION: &str = "0.1.0+abc123";
    let (helm, folder) = (cache().join("bin/helm"), tempfile::tempdir()?);
    let packaged = Command::new(&helm)
        .arg("package")
        .arg(chart::folder())
        .args(["--version", VERSION, "--app-version", VERSION, "--destination"])
        .arg(folder.path())
        .output()?;
    assert!(
        packaged.status.success(),
        "{}",
        String::from_utf8_lossy(&packaged.stderr)
    );
    let rendered = Command::new(&helm)
        .args(["template", chart::OPERATOR])
        .arg(folder.path().join(format!("grpo-operator-{VERSION}.tgz")))
        .output()?;
    let text = String::from_utf8(rendered.stdout)?;
    for (label, value) in [
        ("app.kubernetes.io/version: ", "0.1.0_abc123"),
        ("helm.sh/chart: ", "grpo-operator-0.1.0_abc123"),
    ] {
        let values: BTreeSet<&str> = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix(label))
            .map(|value| value.trim_matches('"'))
            .collect();
        assert_eq!(values, BTreeSet::from([value]), "{label}");
    }
    Ok(())
}
