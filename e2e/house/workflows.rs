//! Every test, check and benchmark runs automatically: `make test` with each push, every other target once a week.

use std::collections::BTreeSet;

use regex::Regex;

use crate::tree::repository;

/// Targets that need a GPU: only the machine of `gpu.yml` has one.
const GPU: [&str; 2] = ["bench-gpu", "test-gpu"];

fn text(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap()
}

/// The matches of the pattern's group, line by line.
fn found(pattern: &str, text: &str) -> BTreeSet<String> {
    let pattern = Regex::new(pattern).unwrap();
    let captures = pattern.captures_iter(text);
    captures.map(|found| found.extract::<1>().1[0].to_owned()).collect()
}

#[test]
fn every_target_that_tests_checks_or_measures_runs_in_a_workflow() {
    let makefile = text("Makefile");
    let of_test = found(r"(?m)^test: (.*) ##", &makefile);
    let of_test: BTreeSet<&str> = of_test.iter().flat_map(|targets| targets.split(' ')).collect();
    assert!(of_test.contains("test-unit"), "what `make test` needs: {of_test:?}");
    let targets = found(r"(?m)^((?:bench|check|fuzz|test)-[a-z0-9-]+):", &makefile);
    let left_out: BTreeSet<String> = targets
        .into_iter()
        .filter(|target| !of_test.contains(target.as_str()) && !GPU.contains(&target.as_str()))
        .collect();
    let scheduled = text(".github/workflows/scheduled.yml");
    let listed = found(r"(?m)^          - ([a-z0-9-]+)$", &scheduled);
    assert_eq!(
        listed, left_out,
        "the list of .github/workflows/scheduled.yml and the Makefile's targets"
    );
    let gpu = text(".github/workflows/gpu.yml");
    assert_eq!(
        found(r"(?m)^          - ([a-z0-9-]+)$", &gpu),
        GPU.map(str::to_owned).into()
    );
    assert!(scheduled.contains(" make ${{ matrix.target }}\n") && scheduled.contains("cron:"));
    assert!(text(".github/workflows/e2e.yml").contains(".ci/run\n"));
    assert!(
        text(".ci/run").contains("--no-print-directory test"),
        "`.ci/run` runs `make test`"
    );
}
