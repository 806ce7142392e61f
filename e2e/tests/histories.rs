//! Trimmed histories on a real cluster: the demo's policy with a context that is too small for an episode, trained turn
//! by turn. Needs a cluster with images: `make test-histories`.

use crate::support::{Result, Scene, small_run, verified};
use grpo_records::folder::counting;
use grpo_records::trainer::StepMetrics;
use grpo_records::{EpisodeScope, paths};
use serde_json::json;

#[tokio::test]
#[ignore = "needs a cluster with images: make test-histories"]
async fn episodes_longer_than_their_context_are_trained_turn_by_turn() -> Result<()> {
    let scene = Scene::new("histories").await?;
    let manifest = small_run("trimmed")?
        .with("/agent/context", json!({"trim": {"head": 0.3, "tail": 0.5}}))
        .with("/agent/limits/contextTokens", json!(360))
        .with("/rollout/sampling/maxTokensPerCall", json!(80))
        .for_each_set(|set| set["atStart"] = json!(false));
    scene.apply(&manifest).await?;
    let ended = scene.follow("trimmed").await?;
    let folder = scene.store_of(&ended.run).await?;
    verified(&folder)?;

    let (mut turns, mut rows, mut trimmed) = (0, 0, 0);
    for iteration in 1..=2 {
        for episode in counting(folder.episodes(&EpisodeScope::Iteration { iteration })?) {
            let ended = folder.ended(&episode.path)?.ok_or("an episode has no record")?;
            turns += ended.record.turns.len();
            rows += ended.rows.len();
            trimmed += ended.record.turns.iter().filter(|turn| turn.omitted.is_some()).count();
        }
        let batch = folder.batch(iteration)?;
        assert!(batch.rows.iter().all(|row| row.turn.is_some()), "every row is a turn");
        let metrics: Option<StepMetrics> = folder.json_if_there(&paths::trainer_metrics(iteration))?;
        let metrics = metrics.ok_or("the step has no metrics")?;
        assert!(
            metrics.unique_tokens < metrics.row_tokens,
            "turns of one history share its tokens: {metrics:?}"
        );
        assert_eq!(
            metrics.logprob_gap_over, 0,
            "tokens whose logprob differs by more than 1e-3: {metrics:?}"
        );
    }
    scene.say(&format!(
        "{turns} turns, {trimmed} with a trimmed history, {rows} stored rows"
    ));
    assert!(trimmed > 0, "no episode was longer than its context");
    scene.clear().await
}
