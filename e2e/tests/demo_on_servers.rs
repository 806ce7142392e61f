//! The demo as users run it, on a volume, and beside it the same demo with its store in a bucket and its rows and model
//! from a hub: `make bench-servers` writes bench/results/servers.json.

use crate::support::bucket::Bucket;
use crate::support::hub::Hub;
use crate::support::{Result, SOON, Scene, repository, verdicts, verified};
use grpo_bench_report::{Bench, Row};
use grpo_demo::follow;
use grpo_demo::learning::differing_episodes;
use grpo_demo::report::first_and_last;
use grpo_testing::cluster::manifest::{RunManifest, delete_run};
use std::time::Duration;

/// The demo takes less than half of it on two cores.
const LIMIT: Duration = Duration::from_secs(40 * 60);

#[tokio::test]
#[ignore = "takes 36 minutes: make bench-servers"]
async fn the_demo_on_servers_takes_no_longer_than_on_a_volume_and_loses_nothing() -> Result<()> {
    let scene = Scene::new("servers").await?;
    let (bucket, hub) = (Bucket::new(&scene).await?, Hub::new(&scene).await?);
    let demo = RunManifest::read(&repository().join("docs/examples/demo.yaml"))?;
    let on_servers = hub.holds(bucket.holds(demo.clone().named("on-servers")));
    let (mut seconds, mut folders) = (Vec::new(), Vec::new());
    for manifest in [demo.named("on-a-volume"), on_servers] {
        scene.apply(&manifest).await?;
        let ended = follow::follow(&scene.runs(), manifest.name(), LIMIT).await?;
        let folder = match &ended.run.spec.store.object_store {
            None => scene.store_of(&ended.run).await?,
            Some(_) => bucket.store_of(&ended.run)?,
        };
        verified(&folder)?;
        seconds.push(ended.seconds);
        folders.push(folder);
        delete_run(&scene.client, &ended.run, SOON).await?;
    }
    // Two verdicts on one episode would be an error.
    let (volume, servers) = (verdicts(&folders[0])?, verdicts(&folders[1])?);
    let lost = volume.difference(&servers).count();
    let mut differ = 0;
    let (first, second) = (first_and_last(&folders[0]), first_and_last(&folders[1]));
    for (set, (before, after)) in &first {
        let of = [Some(before), after.as_ref()].into_iter().flatten();
        let others = [Some(&second[set].0), second[set].1.as_ref()].into_iter().flatten();
        for (weights, other) in of.zip(others) {
            differ += differing_episodes((&folders[0], weights), (&folders[1], other), set)?.0;
        }
    }
    let demo = "4: the demo with its store on S3, rows and model from a hub";
    let rows = [
        Row::new(
            format!("{demo}: seconds / the volume's"),
            Some(seconds[1] / seconds[0]),
            "x",
            Some("<= 1.2"),
        )
        .beside("seconds on a volume", seconds[0]),
        Row::new(
            format!("{demo}: of {} verdicts lost or doubled", volume.len()),
            Some(lost as f64),
            "episodes",
            Some("<= 0"),
        ),
        Row::new(
            format!("{demo}: evaluated episodes that differ"),
            Some(f64::from(differ)),
            "episodes",
            None,
        ),
    ];
    for row in &rows {
        scene.say(&serde_json::to_string(row)?);
    }
    let versions = ["versitygw, a simulated hub".to_owned()];
    Bench::of_this_machine(&rows)
        .with_versions(&versions)
        .write(&repository().join("bench/results/servers.json"))?;
    assert!(rows.iter().all(Row::meets_its_bar), "{rows:#?}");
    scene.clear().await
}
