//! Compares plain runs of the demo with runs that choose their groups, their schedule or the reward of turns otherwise:
//! one pair of runs for each seed. Both have the same tasks, sampling seeds and iterations, and are evaluated after the
//! same steps.

use super::judge::{self, Judging};
use super::{Options, base, print, run};
use grpo_bench_report::Bench;
use grpo_demo::arms::{self, Arm, Compared, SET};
use grpo_demo::judge::effect::Effect;
use grpo_demo::tasks::Tasks;
use grpo_testing::cluster::manifest::RunManifest;
use kube::Client;
use serde_json::json;
use std::error::Error;
use std::path::Path;

const FIGURES: &str = "bench/results/arms.json";
/// Iterations between two evaluations.
const EVERY: u32 = 4;

/// Runs the pairs whose stores do not exist yet. Returns whether every bar is met.
pub async fn compare(client: &Client, options: &Options, arm: Arm, tasks: &Tasks) -> Result<bool, Box<dyn Error>> {
    let base = evaluated(base(options)?);
    let judging = match arm {
        Arm::Judge => Some(Judging::start(client, options, &base, tasks).await?),
        Arm::Dynamic | Arm::Overlap => None,
    };
    let mut compared = Compared::default();
    let mut effect = Effect::default();
    let pairs = options.seeds.len();
    for (number, seed) in (1..).zip(&options.seeds) {
        println!("pair {number} of {pairs}: seed {seed}");
        let plain = base.clone().named(&format!("arm-plain-seed-{seed}"));
        let plain = run(client, options, plain.with("/seed", json!(seed))).await?;
        compared.plain.push(arms::curve(&plain)?);
        let other = of_arm(base.clone(), arm, *seed).with("/seed", json!(seed));
        let other = run(client, options, other).await?;
        compared.other.push(arms::curve(&other)?);
        if arm == Arm::Judge {
            effect.take(*seed, &plain, &other, tasks)?;
        }
    }
    if let Some(judging) = judging {
        judging.stop(client, options).await?;
    }
    let mut rows = compared.rows(arm)?;
    if arm == Arm::Judge {
        rows.extend(effect.rows(tasks));
    }
    let file = Path::new(FIGURES);
    Bench::of_this_machine(&rows).merged_with(file).write(file)?;
    print(&rows, file);
    Ok(rows.iter().all(|row| row.meets_its_bar()))
}

/// Measures the training tasks before the first step, after every few and after the last, and no other set.
fn evaluated(mut base: RunManifest) -> RunManifest {
    if let Some(sets) = base.0["spec"]["tasks"]["evaluate"].as_array_mut() {
        sets.retain(|set| set["name"] == SET);
    }
    base.for_each_set(|set| {
        set["atStart"] = json!(true);
        set["every"] = json!(EVERY);
    })
}

fn of_arm(base: RunManifest, arm: Arm, seed: u64) -> RunManifest {
    match arm {
        Arm::Dynamic => base
            .named(&format!("arm-dynamic-seed-{seed}"))
            .with("/rollout/dynamic", json!({"overSample": 1.5, "limit": 3.0})),
        Arm::Overlap => base
            .named(&format!("arm-overlap-seed-{seed}"))
            .with("/rollout/maxStaleness", json!(1))
            .with("/rollout/onSync", json!("Continue")),
        Arm::Judge => judge::judged(base.named(&format!("arm-judge-seed-{seed}"))),
    }
}
