//! Outages of gateway and engines that last longer than an agent waits. They take real time: the driver renews the way
//! to an agent every 10 seconds, and a wait for an engine counts from 30 seconds on.

use super::{episodes, mends_after, world};
use crate::world::World;
use grpo_driver::config::Settings;
use grpo_records::{EpisodeEnd, Outcome};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A run of two episodes, one after the other, and a signal at the third answer of the first.
async fn with_a_signal(mode: &str) -> (World, Settings, tokio::sync::watch::Receiver<u32>) {
    let (world, mut settings) = world(mode, 3).await;
    settings.concurrency = Some(1);
    let (reached, asked) = tokio::sync::watch::channel(0);
    let mends = mends_after(3);
    let answers = AtomicU32::new(0);
    *world.engine.policy.lock().unwrap() = Box::new(move |prompt, seed| {
        reached.send_replace(answers.fetch_add(1, Ordering::Relaxed) + 1);
        mends(prompt, seed)
    });
    (world, settings, asked)
}

/// Attempt, outcome, end and turns of both episodes.
async fn both(world: &World) -> Vec<(u32, Outcome, EpisodeEnd, u32)> {
    let folder = world.verified().await;
    let episodes = episodes(&folder).into_iter();
    let mut ends: Vec<_> = episodes
        .map(|(meta, _)| (meta.attempt, meta.outcome, meta.end, meta.turns))
        .collect();
    ends.sort_by_key(|(attempt, ..)| *attempt);
    ends
}

#[tokio::test]
async fn an_outage_of_the_gateway_is_not_the_agents_time() {
    let (world, mut settings, mut asked) = with_a_signal("linear").await;
    settings.agent.limits.episode_timeout = Duration::from_secs(40);
    let outage = async {
        asked.wait_for(|asked| *asked >= 3).await.unwrap();
        world.gateway.relays.out_for(Duration::from_secs(45)).await;
    };
    let (ended, ()) = tokio::join!(world.go(settings, 1), outage);
    ended.unwrap();
    let end = |attempt| (attempt, Outcome::Resolved, EpisodeEnd::Submitted, 5);
    assert_eq!(both(&world).await, [end(1), end(1)]);
}

#[tokio::test]
async fn an_agent_that_gives_up_in_an_outage_of_the_gateway_is_followed_by_another_attempt() {
    let (world, settings, mut asked) = with_a_signal("impatient").await;
    let outage = async {
        asked.wait_for(|asked| *asked >= 3).await.unwrap();
        world.gateway.relays.out_for(Duration::from_secs(25)).await;
    };
    let (ended, ()) = tokio::join!(world.go(settings, 1), outage);
    ended.unwrap();
    let end = |attempt| (attempt, Outcome::Resolved, EpisodeEnd::Submitted, 5);
    assert_eq!(both(&world).await, [end(1), end(2)]);
    assert!(world.state().await.voids.is_empty());
}

#[tokio::test]
async fn an_agent_that_gives_up_while_it_waits_for_an_engine_is_followed_by_another_attempt() {
    let (world, mut settings, mut asked) = with_a_signal("hasty").await;
    settings.patience.engines.total = Duration::from_secs(120);
    let outage = async {
        asked.wait_for(|asked| *asked >= 3).await.unwrap();
        *world.engine.booting.lock().unwrap() = true;
        tokio::time::sleep(Duration::from_secs(45)).await;
        *world.engine.booting.lock().unwrap() = false;
    };
    let (ended, ()) = tokio::join!(world.go(settings, 1), outage);
    ended.unwrap();
    let end = |attempt| (attempt, Outcome::Resolved, EpisodeEnd::Submitted, 5);
    assert_eq!(both(&world).await, [end(1), end(2)]);
}
