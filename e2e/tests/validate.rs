//! Mode Validate on a real cluster: none of the demo's first 60 tasks is rejected, and each of ten broken tasks is
//! named with its cause. Needs a cluster with images: `make test-validate`.
//!
//! `GRPO_VALIDATE_TASKS` is the number of the demo's training tasks to try. Of all 120 two are unfit, and the test
//! fails: a test of one reads the clock, and the fix of the other computes for longer than its tests may.

use crate::support::{RUN_LIMIT, Result, SOON, Scene, plugin, rows, small_run};
use grpo_crds::GrpoRun;
use grpo_demo::follow::has_ended;
use grpo_records::paths;
use grpo_records::validation::{Finding, TaskValidation};
use grpo_testing::cluster::wait;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const RUN: &str = "validate";
/// Tests of a flaky task. Each trial draws the number of passing ones: three trials agree once in 160,000 runs.
const FLAKY_TESTS: usize = 400;
/// A hanging task is tried six times.
const GRADE_TIMEOUT: &str = "30s";

#[tokio::test]
#[ignore = "needs a cluster with images: make test-validate"]
async fn each_broken_task_is_named_with_its_cause_and_no_good_one_is_rejected() -> Result<()> {
    let good = demo_rows()?;
    let broken = broken_tasks(&good)?;
    let wanted: BTreeMap<String, Vec<String>> = broken.iter().map(|one| (one.instance(), one.found())).collect();
    // The broken ones first: a hanging one takes longer than all others.
    let good = &good[..good.len().min(good_tasks())];
    let all: Vec<&Value> = broken.iter().map(|one| &one.row).chain(good).collect();
    let text: String = all.iter().map(|row| format!("{row}\n")).collect();

    let scene = Scene::new("validate").await?;
    scene.volume_with_files("tasks", &[("train.jsonl", &text)]).await?;
    let dataset = json!({"persistentVolumeClaim": {"claimName": "tasks", "path": "train.jsonl"}});
    // The rest is the demo's: its engine and its trainer are not created.
    let manifest = small_run(RUN)?
        .with("/mode", json!("Validate"))
        .with("/tasks", json!({"train": {"dataset": dataset}}))
        .with("/reward/gradeTimeout", json!(GRADE_TIMEOUT));
    scene.apply(&manifest).await?;
    let run = in_the_middle(&scene).await?;
    only_driver_and_sandboxes(&scene).await?;
    let early = plugin::validated(&scene, &run).await.unwrap_err().to_string();
    assert!(
        early.contains("has not validated all tasks of tasks.train yet"),
        "{early}"
    );
    let ended = scene.follow(RUN).await?;
    let folder = scene.store_of(&ended.run).await?;

    let (mut rejected, mut missed) = (Vec::new(), Vec::new());
    for row in &all {
        let instance = text_of(row, "instance_id")?;
        let one: Option<TaskValidation> = folder.json_if_there(&paths::validation("train", instance))?;
        let one = one.ok_or(format!("{instance} has no record"))?;
        let found: Vec<String> = one.findings.iter().map(named).collect();
        match wanted.get(instance) {
            None if found.is_empty() => {}
            None => rejected.push(format!("{instance}: {one:?}")),
            Some(wanted) if *wanted == found => {}
            Some(wanted) => missed.push(format!("{instance} should be {wanted:?}: {one:?}")),
        }
    }
    assert!(rejected.is_empty(), "good tasks are rejected:\n{}", rejected.join("\n"));
    assert!(
        missed.is_empty(),
        "broken tasks have other findings:\n{}",
        missed.join("\n")
    );

    let list = plugin::validated(&scene, &ended.run).await?;
    let fit: Vec<&str> = list.lines().filter(|line| !line.starts_with('#')).collect();
    let ids: Vec<&str> = good
        .iter()
        .map(|row| text_of(row, "instance_id"))
        .collect::<Result<_>>()?;
    assert_eq!(fit, ids, "{list}");
    scene.say(&format!(
        "{} of {} tasks are fit, {} broken ones are named, {:.0} s",
        fit.len(),
        all.len(),
        wanted.len(),
        ended.seconds
    ));
    scene.until_no_sandbox_is_leased().await?;
    let none = |there: &wait::Objects<Pod>| there.is_empty().then_some(());
    scene
        .until_pods("grpo.dev/role=sandbox", SOON, "every sandbox to be gone", none)
        .await?;
    scene.clear().await
}

/// The run when its first task is done. The hanging one takes much longer.
async fn in_the_middle(scene: &Scene) -> Result<GrpoRun> {
    let begun = |run: &GrpoRun| {
        let progress = run.status.as_ref()?.progress.as_ref()?;
        let done = progress.episodes_done.is_some_and(|done| done > 0);
        (done || has_ended(run)).then(|| run.clone())
    };
    scene.until_run(RUN, RUN_LIMIT, "a validated task", begun).await
}

async fn only_driver_and_sandboxes(scene: &Scene) -> Result<()> {
    let others = ListParams::default().labels("grpo.dev/role in (engine,trainer)");
    let others = scene.pods().list(&others).await?.items;
    let others: Vec<String> = others.iter().map(ResourceExt::name_any).collect();
    assert!(
        others.is_empty(),
        "mode Validate needs no engine and no trainer: {others:?}"
    );
    Ok(())
}

fn good_tasks() -> usize {
    let tasks = std::env::var("GRPO_VALIDATE_TASKS").ok();
    tasks.and_then(|text| text.parse().ok()).unwrap_or(60)
}

fn demo_rows() -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(rows().join("train.jsonl"))?;
    Ok(text
        .lines()
        .map(serde_json::from_str)
        .collect::<std::result::Result<_, _>>()?)
}

fn text_of<'a>(row: &'a Value, field: &str) -> Result<&'a str> {
    Ok(row[field].as_str().ok_or(format!("a row of the demo has no {field}"))?)
}

/// A finding without its unpredictable parts, such as git's messages.
fn named(finding: &Finding) -> String {
    match finding {
        Finding::BaseMissing { .. } => "BaseMissing".into(),
        Finding::SetupFails { .. } => "SetupFails".into(),
        Finding::LaterCommits { count, newest } => {
            let subject = newest.split_once(' ').map_or("", |(_, subject)| subject);
            format!("LaterCommits: {count}, {subject}")
        }
        Finding::Flaky { patch, .. } => format!("Flaky: {patch}"),
        Finding::Hangs { patch } => format!("Hangs: {patch}"),
        other => format!("{other:?}"),
    }
}

/// A task of the demo with one change, and its expected finding.
struct BrokenTask {
    row: Value,
    found: &'static [&'static str],
}

impl BrokenTask {
    fn instance(&self) -> String {
        self.row["instance_id"].as_str().unwrap_or_default().to_owned()
    }

    fn found(&self) -> Vec<String> {
        self.found.iter().map(|&found| found.to_owned()).collect()
    }
}

fn broken_tasks(rows: &[Value]) -> Result<Vec<BrokenTask>> {
    let mut rows_left = rows.iter();
    let mut made = |name: &str, found: &'static [&'static str], change: &dyn Fn(&mut Value) -> Result<()>| {
        let mut row = rows_left.next().ok_or("the demo has too few rows")?.clone();
        change(&mut row)?;
        row["instance_id"] = json!(format!("broken__{name}"));
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(BrokenTask { row, found })
    };
    Ok(vec![
        made("hanging", &["Hangs: the gold patch", "Hangs: no patch"], &|row| {
            tests(row, "sleep 600");
            Ok(())
        })?,
        // The patched test passes by chance.
        made("flaky-fix", &["Flaky: the gold patch"], &|row| {
            let patched = "! git -c safe.directory='*' diff --quiet";
            row["FAIL_TO_PASS"] = names_of_flaky_tests();
            row["PASS_TO_PASS"] = json!("[]");
            tests(row, &flaky_tests(&format!("if {patched}; then n=$drawn; else n=0; fi")));
            Ok(())
        })?,
        // The fix is sound, but other tests are flaky.
        made(
            "flaky-neighbours",
            &["Flaky: the gold patch", "Flaky: no patch"],
            &|row| {
                row["PASS_TO_PASS"] = names_of_flaky_tests();
                tests(row, &format!("{REAL_TESTS}\n{}", flaky_tests("n=$drawn")));
                Ok(())
            },
        )?,
        made("gold-fails", &["GoldFails { trials: 3 }"], &|row| {
            row["patch"] = json!(
                "diff --git a/NOTES b/NOTES\nnew file mode 100644\n--- /dev/null\n+++ b/NOTES\n@@ -0,0 +1 @@\n+To be fixed.\n"
            );
            Ok(())
        })?,
        // The gold patch of another package.
        made("gold-does-not-apply", &["GoldDoesNotApply"], &|row| {
            let other = rows.iter().find(|other| other["package"] != row["package"]);
            row["patch"] = other.ok_or("all rows are of one package")?["patch"].clone();
            Ok(())
        })?,
        made("tests-check-nothing", &["EmptyPasses { trials: 3 }"], &|row| {
            let names: Vec<String> = ["FAIL_TO_PASS", "PASS_TO_PASS"]
                .iter()
                .map(|list| Ok(serde_json::from_str::<Vec<String>>(text_of(row, list)?)?))
                .collect::<Result<Vec<_>>>()?
                .concat();
            let lines = names.iter().map(|name| format!("echo 'PASSED {name}'"));
            tests(row, &lines.collect::<Vec<_>>().join("\n"));
            Ok(())
        })?,
        // The checked-out commit has the fix already.
        made("fixed-already", &["EmptyPasses { trials: 3 }"], &|row| {
            setup(row, &[FIX, COMMIT])
        })?,
        made("fix-on-a-branch", &["LaterCommits: 1, Add the fix"], &|row| {
            setup(row, &["git checkout -q -b fix", FIX, COMMIT, "git checkout -q main"])
        })?,
        made("wrong-base", &["BaseMissing"], &|row| {
            row["base_commit"] = json!("1".repeat(40));
            Ok(())
        })?,
        made("setup-fails", &["SetupFails"], &|row| {
            row["setup"] = json!("echo 'no such package'\nexit 3\n");
            Ok(())
        })?,
    ])
}

/// As the demo's own rows run them.
const REAL_TESTS: &str =
    "env -i PATH=/usr/bin:/bin LANG=C.UTF-8 PYTHONHASHSEED=0 python3 -S -s -B /opt/task/run.py report";
/// Placeholder for the row's fix.
const FIX: &str = "FIX";
const SETUP: &str = "set -e
cd /testbed
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'";
const COMMIT: &str = "git -c user.name=setup -c user.email=setup@example.com commit -q -a -m 'Add the fix'";

/// Replaces the row's tests with other commands.
fn tests(row: &mut Value, commands: &str) {
    row["eval_script"] = json!(format!(
        "#!/bin/bash\nset -uxo pipefail\ncd /testbed\necho '>>>>> Start Test Output'\n{commands}\necho '>>>>> End Test Output'\n"
    ));
}

fn flaky_test(number: usize) -> String {
    format!("tests/flaky.py::test_{number}")
}

fn names_of_flaky_tests() -> Value {
    let names: Vec<String> = (0..FLAKY_TESTS).map(flaky_test).collect();
    json!(json!(names).to_string())
}

/// The first `n` tests pass. `count` is a command that sets `n` from the number `drawn`.
fn flaky_tests(count: &str) -> String {
    let name = "tests/flaky.py::test_$i";
    format!(
        "{{
drawn=$(( $(od -An -N4 -tu4 /dev/urandom) % {FLAKY_TESTS} ))
{count}
for i in $(seq 0 {}); do
  if [ $i -lt $n ]; then echo \"PASSED {name}\"; else echo \"FAILED {name}\"; fi
done
}} 2> /dev/null",
        FLAKY_TESTS - 1
    )
}

/// Gives the row a setup. [`FIX`] becomes the fix of its bug.
fn setup(row: &mut Value, commands: &[&str]) -> Result<()> {
    let lines = row["lines"].as_array().ok_or("a row of the demo has no lines")?;
    let repair = row["repair"].as_array().ok_or("a row of the demo has no repair")?;
    let ([first, last], [Value::String(old), Value::String(new)]) = (&lines[..], &repair[..]) else {
        return Err("lines and repair of a row of the demo are two values each".into());
    };
    let fix = format!("sed -i '{first},{last}s/{old}/{new}/' {}", text_of(row, "file")?);
    let commands = commands
        .iter()
        .map(|&command| if command == FIX { fix.as_str() } else { command });
    row["setup"] = json!(format!("{SETUP}\n{}\n", commands.collect::<Vec<_>>().join("\n")));
    Ok(())
}
