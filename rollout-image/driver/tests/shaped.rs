//! Shaped rewards in whole runs: recorded with their rule, recomputed by the verifier.

use crate::world::World;
use grpo_records::reward::{Cost, Shaping};
use grpo_records::{Outcome, RewardRule, paths};

#[tokio::test]
async fn a_shaped_reward_makes_groups_of_equal_verdicts_differ_and_is_recomputed() {
    let world = World::new(1).await;
    // Nothing is ever resolved; some episodes take one more turn.
    *world.engine.policy.lock().unwrap() = Box::new(|prompt, seed| {
        let command = match prompt.matches("assistant\n").count() {
            1 => "echo '# no' >> $F",
            2 if seed.is_multiple_of(2) => "cat $F",
            _ => "echo SUBMIT",
        };
        format!("Go.\n```bash\n{command}\n```")
    });
    let mut settings = world.settings();
    settings.iterations = 1;
    settings.evaluate.clear();
    settings.reward.rule = RewardRule {
        resolved: 0.5,
        unresolved: 0.0,
        shaping: Some(Shaping {
            pass_ratio: 1.0,
            turns: Cost { each: 0.01, most: 0.3 },
            patch_lines: Cost { each: 0.001, most: 0.2 },
            ..Shaping::default()
        }),
        asks: false,
    };
    world.go(settings, 1).await.unwrap();
    world.verified().await;
    let metas = world.metas().await;
    assert_eq!(metas.len(), 8);
    let mut rewards: Vec<f32> = Vec::new();
    for meta in &metas {
        assert_eq!(meta.outcome, Outcome::Unresolved);
        // One of two tests passes, and the patch adds one line.
        let reward = 0.5 - 0.01 * f64::from(meta.turns) - 0.001;
        assert_eq!(meta.reward, Some(reward as f32), "{} turns", meta.turns);
        rewards.extend(meta.reward);
    }
    rewards.dedup();
    assert!(rewards.len() > 1, "groups have something to learn from");

    // A reward that is too high is found.
    let file = world.dir().join(paths::meta(&metas[0].key.dir(1)));
    let text = std::fs::read_to_string(&file).unwrap();
    let mut meta: serde_json::Value = serde_json::from_str(&text).unwrap();
    meta["reward"] = 0.5.into();
    std::fs::write(&file, meta.to_string()).unwrap();
    let (_, checks) = world.recomputed().await;
    let found = checks
        .iter()
        .find(|check| check.name == "rewards follow from verdicts and scores");
    assert_eq!(found.unwrap().disagreements.len(), 1);
}
