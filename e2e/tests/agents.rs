//! A command-line agent on a real cluster: unmodified mini-swe-agent in the demo's sandboxes uses the run's driver as
//! its model, through the gateway's relay, and the run trains on the tokens sampled for it.
//!
//! The demo's policy knows another command format, so most of its answers come back as errors: the test is about the
//! path of the tokens, not about learning. Needs a cluster with the agents' images: `make test-agents`.

use crate::support::{Result, Scene, small_run, verified};
use grpo_records::folder::counting;
use grpo_records::trainer::StepMetrics;
use grpo_records::{Branch, EpisodeScope, paths};
use serde_json::json;

const IMAGE: &str = "grpo.dev/cli/mini-swe-agent:2.4.6";

#[tokio::test]
#[ignore = "needs a cluster with the agents' images: make test-agents"]
async fn mini_swe_agent_works_unmodified_and_what_was_sampled_for_it_is_trained_on() -> Result<()> {
    let scene = Scene::new("agents").await?;
    let agent = json!({
        "cli": {
            "preset": "MiniSweAgent",
            "image": IMAGE,
            "system": "Fix the bug. One bash block per turn.",
            "task": "{{ task.problem_statement }}",
        },
        "limits": {"turns": 6, "commandTimeout": "20s", "episodeTimeout": "5m"},
    });
    let sandboxes = json!({
        "requests": {"cpu": "10m", "ephemeral-storage": "64Mi"},
        "limits": {"cpu": "500m", "memory": "512Mi", "ephemeral-storage": "1Gi"},
    });
    let manifest = small_run("mini-swe-agent")?
        .with("/agent", agent)
        .with("/rollout/iterations", json!(1))
        // If all rewards are equal, no token has a loss, and the trainer would compute no logprob to compare.
        .with("/algorithm/entropyCoefficient", json!(0.001))
        .with("/sandboxes/pool/resources", sandboxes)
        .for_each_set(|set| set["atStart"] = json!(false));
    scene.apply(&manifest).await?;
    let ended = scene.follow("mini-swe-agent").await?;
    let folder = scene.store_of(&ended.run).await?;
    verified(&folder)?;

    let scope = EpisodeScope::Iteration { iteration: 1 };
    let (mut turns, mut rows, mut causes) = (0, 0, Vec::new());
    let episodes = counting(folder.episodes(&scope)?);
    for episode in &episodes {
        let ended = folder.ended(&episode.path)?.ok_or("an episode has no record")?;
        let process = ended
            .record
            .process
            .as_ref()
            .ok_or("the agent's process has no record")?;
        assert!(
            !ended.record.turns.is_empty(),
            "the agent asked nothing: {}",
            process.log
        );
        turns += ended.record.turns.len();
        rows += ended.rows.len();
        let requests = ended.record.turns.iter().filter_map(|turn| turn.request.as_ref());
        causes.extend(requests.filter_map(|request| request.branch));
    }
    let others: Vec<Branch> = causes.into_iter().filter(|cause| *cause != Branch::First).collect();
    scene.say(&format!(
        "{} episodes, {turns} turns, {rows} rows; rows beyond the first of an episode: {others:?}",
        episodes.len()
    ));
    assert!(turns > episodes.len(), "an agent that is answered asks again");
    let metrics: Option<StepMetrics> = folder.json_if_there(&paths::trainer_metrics(1))?;
    let metrics = metrics.ok_or("the step has no metrics")?;
    assert!(metrics.trained_tokens > 0);
    assert_eq!(
        metrics.logprob_gap_over, 0,
        "tokens whose logprob differs by more than 1e-3: {metrics:?}"
    );
    scene.clear().await
}
