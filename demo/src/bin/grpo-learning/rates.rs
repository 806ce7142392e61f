//! Chooses the learning rate on the validation split: one run per rate, with seed 0, measured on tasks that neither
//! training nor the held-out figures use. The held-out tasks must not influence the choice.

use super::{Options, base, run};
use grpo_bench_report::{Bench, Row};
use grpo_demo::learning::{self, EVALUATION_SEED};
use grpo_demo::tasks::Tasks;
use grpo_testing::cluster::manifest::RunManifest;
use kube::Client;
use serde_json::json;
use std::error::Error;

/// Prints each rate with its gain and marks the best. Returns whether the best is the manifest's own.
pub async fn choose(client: &Client, options: &Options, tasks: &Tasks) -> Result<bool, Box<dyn Error>> {
    let own = base(options)?.0["spec"]["algorithm"]["learningRate"].as_f64();
    let mut rows = Vec::new();
    let mut best: Option<(f64, f64)> = None;
    let mut before = None;
    for rate in &options.rates {
        let folder = run(client, options, manifest(options, *rate, before.is_none())?).await?;
        // Measured once: every rate starts from the same weights and uses the same sampling seeds.
        let before = match &mut before {
            Some(before) => before,
            None => before.insert(learning::first_evaluations(&folder)?),
        };
        let sets = learning::outcome(&folder, &format!("rate {rate}"), before, tasks)?;
        for (set, report) in &sets {
            let gain = report.gain.ok_or("the set was measured once only")?;
            let points = gain.value * 100.0;
            println!(
                "rate {rate:e}: {points:.1} [{:.1}, {:.1}] points on {set}",
                gain.low * 100.0,
                gain.high * 100.0
            );
            rows.push(Row::new(
                format!("gain on {set} tasks at rate {rate:e}"),
                Some(points),
                "points",
                None,
            ));
            if best.is_none_or(|(_, most)| points > most) {
                best = Some((*rate, points));
            }
        }
    }
    let (best, _) = best.ok_or("no rates were given")?;
    println!("best: {best:e}; the manifest has {own:?}");
    rows.push(Row::new("best rate on the validation split", Some(best), "", None));
    Bench::of_this_machine(&rows).write("bench/results/rate.json".as_ref())?;
    Ok(own == Some(best))
}

fn manifest(options: &Options, rate: f64, at_start: bool) -> Result<RunManifest, Box<dyn Error>> {
    let mut dataset = base(options)?.0["spec"]["tasks"]["train"]["dataset"].clone();
    dataset["image"]["path"] = json!("validation.jsonl");
    Ok(base(options)?
        .named(&format!("rate-{rate:e}").replace('.', "-"))
        .with("/algorithm/learningRate", json!(rate))
        .with(
            "/tasks/evaluate",
            json!([{"name": "validation", "dataset": dataset, "samples": options.samples, "seed": EVALUATION_SEED,
                    "atStart": at_start, "atEnd": true}]),
        ))
}
