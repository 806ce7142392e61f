//! Supervised training on a real cluster, and a GRPO run that continues with its weights. Needs a cluster with images:
//! `make test-finetune`.

use crate::support::{Result, Scene, small_run, verified};
use grpo_records::folder::RunFolder;
use grpo_records::paths;
use grpo_records::trainer::StepMetrics;
use grpo_testing::cluster::manifest::RunManifest;
use serde_json::{Value, json};

const ROWS: u32 = 12;
const EPOCHS: u32 = 8;
const BATCH: u32 = 4;
const STEPS: u32 = ROWS * EPOCHS / BATCH;

/// Conversations that look at a file, and then submit.
pub fn conversations(from: u32, count: u32) -> String {
    let rows = (from..from + count).map(|at| {
        let messages: Value = json!([
            {"role": "system", "content": "You fix bugs."},
            {"role": "user", "content": format!("Task {at}: the function of module {at} is wrong.")},
            {"role": "assistant", "content": format!("I look.\n```bash\ncat m{at}.py\n```")},
            {"role": "user", "content": "def f(a, b):\n    return a - b"},
            {"role": "assistant", "content": "I submit.\n```bash\necho SUBMIT\n```"},
        ]);
        json!({"messages": messages, "resolved": at % 5 != 4}).to_string()
    });
    rows.collect::<Vec<_>>().join("\n")
}

fn finetune() -> RunManifest {
    let dataset = |path: &str| json!({"persistentVolumeClaim": {"claimName": "conversations", "path": path}});
    RunManifest(json!({
        "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun", "metadata": {"name": "warm-start"},
        "spec": {
            "mode": "Finetune",
            "model": {"image": {"reference": "grpo.dev/demo/model:1"}},
            "finetune": {
                "dataset": dataset("train.jsonl"), "epochs": EPOCHS, "batch": BATCH, "maxTokens": 512,
                "validation": {"dataset": dataset("test.jsonl"), "every": 8},
            },
            "algorithm": {"learningRate": 3e-4, "schedule": {"decay": "Cosine", "warmupRatio": 0.1}},
            "trainer": {"nodes": 2},
            "checkpoint": {"every": 10, "keep": 1},
            "store": {"persistentVolumeClaim": {"claimName": "runs"}},
        },
    }))
}

#[tokio::test]
#[ignore = "needs a cluster with images: make test-finetune"]
async fn conversations_are_learnt_and_a_grpo_run_continues_with_them() -> Result<()> {
    let scene = Scene::new("finetune").await?;
    // Three of the fifteen were not resolved.
    let files = [
        ("train.jsonl", conversations(0, ROWS + 3)),
        ("test.jsonl", conversations(100, 3)),
    ];
    let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
    scene.volume_with_files("conversations", &files).await?;
    scene.volume_with_files("runs", &[("README", "runs")]).await?;
    scene.apply(&finetune()).await?;
    let ended = scene.follow("warm-start").await?;
    let message = ended
        .run
        .status
        .as_ref()
        .and_then(|status| status.progress.as_ref()?.message.clone());
    assert!(
        message
            .as_ref()
            .is_some_and(|said| said.contains("of 15 rows 3 were not resolved")),
        "{message:?}"
    );
    let folder = scene.store_of(&ended.run).await?;
    verified(&folder)?;
    assert_eq!(folder.state.finished_iterations(), STEPS);
    let (mut losses, mut held_out) = (Vec::new(), Vec::new());
    for step in 1..=STEPS {
        let metrics: Option<StepMetrics> = folder.json_if_there(&paths::trainer_metrics(step))?;
        let metrics = metrics.ok_or("a step has no metrics")?;
        losses.push(metrics.loss);
        held_out.extend(metrics.held_out_loss.map(|loss| (step, loss)));
    }
    scene.say(&format!(
        "{STEPS} steps: loss {:.3} -> {:.3}, on held out rows {held_out:.3?}, {:.0} s",
        losses[0],
        losses[STEPS as usize - 1],
        ended.seconds
    ));
    assert!(losses[STEPS as usize - 1] < 0.5 * losses[0], "{losses:?}");
    let measured: Vec<u32> = held_out.iter().map(|(step, _)| *step).collect();
    assert_eq!(measured, [8, 16, 24]);
    assert!(held_out[2].1 < held_out[0].1, "{held_out:?}");
    let last = paths::weights_version("l1", STEPS);
    let promoted = ended
        .run
        .status
        .as_ref()
        .and_then(|status| status.progress.as_ref()?.weights.clone());
    assert_eq!(promoted.as_ref(), Some(&last));

    let path = format!("{}/warm-start", scene.namespace);
    let run = small_run("goes-on")?
        .with("/rollout/iterations", json!(1))
        .with("/resumeFrom", json!({"path": path, "optimizer": false}))
        .with("/store", json!({"persistentVolumeClaim": {"claimName": "runs"}}))
        .for_each_set(|set| set["atStart"] = json!(false));
    scene.apply(&run).await?;
    let ended = scene.follow("goes-on").await?;
    let grpo = scene.store_of(&ended.run).await?;
    verified(&grpo)?;
    let tensors = |folder: &RunFolder, version: &str| -> Result<String> {
        let manifest: Option<Value> = folder.json_if_there(&paths::weights_manifest(version))?;
        let manifest = manifest.ok_or_else(|| format!("{version} is not there"))?;
        Ok(manifest["tensorsSha256"]
            .as_str()
            .ok_or("a manifest without checksum")?
            .to_owned())
    };
    assert_eq!(
        tensors(&grpo, "l1-v0")?,
        tensors(&folder, &last)?,
        "GRPO begins where supervised training ended"
    );
    scene.clear().await
}
