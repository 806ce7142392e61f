//! A dependency has one set of features in every cargo call of `make build` and `make test-unit`.
//!
//! Two sets would compile it, and everything above it, twice: minutes of a cold run.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use serde_json::Value;

use crate::tree::{metadata, repository};

/// The packages of a Makefile variable, as cargo's arguments.
fn selection(name: &str) -> Vec<String> {
    let makefile = std::fs::read_to_string(repository().join("Makefile")).unwrap();
    let start = format!("{name} := ");
    let line = makefile.lines().find_map(|line| line.strip_prefix(&start)).unwrap();
    line.split_whitespace().map(str::to_owned).collect()
}

/// The features of each external dependency, by its name and version, and by whether a build script or a macro uses it.
///
/// `cargo tree` mixes dependencies for the builder with linked ones, so this reads cargo's own plan of the call.
fn features(call: &str, selection: &[String]) -> BTreeMap<(String, bool), BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .arg(call)
        .args(selection)
        .args([
            // Not `--offline`: on a bare machine the crates of later calls are not downloaded yet.
            "--locked",
            "--tests",
            "--bins",
            "-Z",
            "unstable-options",
            "--unit-graph",
        ])
        // A stable cargo prints the plan too, but only with this variable.
        .env("RUSTC_BOOTSTRAP", "1")
        .current_dir(repository())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    let units = plan["units"].as_array().unwrap();
    let mut found: BTreeMap<(String, bool), BTreeSet<String>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let roots = plan["roots"].as_array().unwrap().iter();
    let mut next: Vec<(u64, bool)> = roots.map(|root| (root.as_u64().unwrap(), false)).collect();
    while let Some((index, of_host)) = next.pop() {
        let unit = &units[index as usize];
        let kinds: Vec<&str> = unit["target"]["kind"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .collect();
        let script_runs = unit["mode"] == "run-custom-build";
        let of_host = of_host || kinds.contains(&"proc-macro") || (kinds.contains(&"custom-build") && !script_runs);
        if !seen.insert((index, of_host)) {
            continue;
        }
        for dependency in unit["dependencies"].as_array().unwrap() {
            next.push((dependency["index"].as_u64().unwrap(), of_host));
        }
        let package = unit["pkg_id"].as_str().unwrap();
        if package.starts_with("registry+") && kinds.iter().any(|kind| kind.ends_with("lib") || *kind == "proc-macro") {
            let name = package.rsplit('#').next().unwrap().to_owned();
            found
                .entry((name, of_host))
                .or_default()
                .insert(unit["features"].to_string());
        }
    }
    assert!(!found.is_empty(), "cargo planned no dependency for {selection:?}");
    found
}

#[test]
fn every_call_of_cargo_gives_a_dependency_the_same_features() {
    let mut calls = Vec::new();
    for name in ["PLAIN", "TORCH"] {
        let selection = selection(name);
        calls.push((format!("cargo build {name}"), features("build", &selection)));
        calls.push((format!("cargo test {name}"), features("test", &selection)));
    }
    for package in metadata()["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        let selection = ["-p", name, "-p", "grpo-features"].map(str::to_owned);
        calls.push((format!("cargo test -p {name}"), features("test", &selection)));
    }
    let mut all: BTreeMap<&(String, bool), BTreeMap<&String, &str>> = BTreeMap::new();
    for (call, found) in &calls {
        for (package, sets) in found {
            for set in sets {
                all.entry(package).or_default().entry(set).or_insert(call);
            }
        }
    }
    let wrong: Vec<String> = all
        .iter()
        .filter(|(_, sets)| sets.len() > 1)
        .map(|((package, of_host), sets)| {
            let table = if *of_host { "build-dependencies" } else { "dependencies" };
            format!("[{table}] {package}: {sets:?}")
        })
        .collect();
    assert!(
        wrong.is_empty(),
        "add the features that differ to e2e/setup/features/Cargo.toml:\n{}",
        wrong.join("\n")
    );
}
