//! Dependencies between our crates point down: images, demo, bench and e2e above libs, libs above crds.
//!
//! Dev-dependencies obey the same rules, because a test that links another image's crate couples the two as much as
//! code does.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::tree::{metadata, repository};

/// Layers of the top folders, the lowest first. A crate may use crates of lower layers, and of its own folder.
fn layer(folder: &str) -> u8 {
    match folder.split('/').next().unwrap() {
        "crds" => 0,
        "libs" => 1,
        "operator" | "sandbox-image" | "rollout-image" | "inference-image" | "trainer-image" => 2,
        "demo" | "bench" | "e2e" => 3,
        other => panic!("{other} is no top folder of CONTRIBUTING.md's map"),
    }
}

/// Chat templates, wire formats, the hub's client, the C++ shim, ports and a simulated server for tests. They use none
/// of our crates, so that their dependents stay small.
const LEAVES: [&str; 7] = [
    "libs/chat-template",
    "libs/sandbox-protocol",
    "libs/engine-protocol",
    "libs/hub",
    "libs/native",
    "libs/free-port",
    "libs/played-wandb",
];

fn top(folder: &str) -> &str {
    folder.split('/').next().unwrap()
}

/// Whether a crate in `user` may depend on one in `used`.
fn allowed(user: &str, used: &str) -> bool {
    if LEAVES.contains(&user) {
        // A crate's tests use the crate itself with a feature.
        return used == user;
    }
    layer(used) < layer(user) || layer(user) == 3 || top(user) == top(used)
}

#[test]
fn every_dependency_points_down() {
    let root = repository();
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    let folder = |package: &Value| {
        let manifest = package["manifest_path"].as_str().unwrap();
        let folder = manifest.strip_suffix("/Cargo.toml").unwrap();
        let relative = std::path::Path::new(folder).strip_prefix(root.canonicalize().unwrap());
        relative.unwrap().display().to_string()
    };
    let folders: BTreeMap<&str, String> = packages
        .iter()
        .map(|package| (package["name"].as_str().unwrap(), folder(package)))
        .collect();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for package in packages {
        let user = folder(package);
        for dependency in package["dependencies"].as_array().unwrap() {
            let Some(used) = folders.get(dependency["name"].as_str().unwrap()) else {
                continue;
            };
            seen += 1;
            if !allowed(&user, used) {
                let kind = dependency["kind"].as_str().unwrap_or("normal");
                wrong.push(format!("{user} uses {used} ({kind})"));
            }
        }
    }
    assert!(seen > 40, "only {seen} dependencies between our crates were found");
    assert!(
        wrong.is_empty(),
        "dependencies that do not point down:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn images_do_not_use_each_other_and_leaves_use_nothing() {
    assert!(allowed("rollout-image/driver", "libs/records"));
    assert!(allowed("trainer-image/trainer", "trainer-image/objective"));
    assert!(allowed("e2e/tests", "rollout-image/driver"));
    assert!(!allowed("operator/kubectl-grpo", "rollout-image/driver"));
    // A plan shows the operator's decisions, so the plugin uses the operator's own functions.
    assert!(allowed("operator/kubectl-grpo", "operator/core"));
    assert!(!allowed("libs/records", "operator"));
    assert!(!allowed("libs/sandbox-protocol", "crds"));
    assert!(!allowed("crds", "libs/contracts"));
}
