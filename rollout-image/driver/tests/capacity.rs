//! A pool of four replicas: one works, one boots, one hangs, and one crashes again and again.

use crate::world::{Engine, Pace, Silence, World};
use grpo_driver::engine::{Answered, Ask, Engines};
use grpo_driver::metrics::Metrics;
use grpo_driver::replicas::Endpoints;
use grpo_driver::replicas::switch::{self, Target, View};
use grpo_driver::retry::Budget;
use grpo_engine_protocol::TokenIds;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// Answers that the working replica samples at one time.
const SLOTS: usize = 4;
const EPISODES: usize = 32;
const TURNS: u64 = 20;

/// The three replicas that do not work; they live as long as the test.
async fn broken() -> [SocketAddr; 3] {
    let (boots, first) = Engine::start("boots").await;
    *boots.booting.lock().unwrap() = true;
    let (hangs, second) = Engine::start("hangs").await;
    *hangs.silence.lock().unwrap() = Some(Silence::Hangs);
    let (crashes, third) = Engine::start("crashes").await;
    *crashes.silence.lock().unwrap() = Some(Silence::Crashes);
    [first, second, third]
}

/// The share of a replica's capacity in use, from its first answer to the last that began while all slots were wanted.
fn carried(pace: &Pace) -> f64 {
    let mut sampled = pace.sampled.lock().unwrap().clone();
    sampled.sort();
    let (from, to) = (sampled[0].0, sampled[sampled.len() - EPISODES].0);
    let busy: Duration = sampled
        .iter()
        .map(|(began, ended)| (*ended).min(to).saturating_duration_since(*began))
        .sum();
    busy.as_secs_f64() / (SLOTS as f64 * (to - from).as_secs_f64())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_replica_that_works_carries_its_capacity_beside_one_that_boots_one_that_hangs_and_one_that_crashes() {
    let (works, address) = Engine::start("works").await;
    let pace = Arc::new(Pace {
        slots: Semaphore::new(SLOTS),
        answer: Duration::from_millis(40),
        sampled: Default::default(),
    });
    *works.pace.lock().unwrap() = Some(pace.clone());
    let [boots, hangs, crashes] = broken().await;
    let budget = Budget {
        request: Duration::from_millis(500),
        total: Duration::from_secs(60),
    };
    let endpoints = Endpoints::Fixed(vec![boots, hangs, crashes, address]);
    let engines = Engines::new(endpoints, "run", budget).unwrap();
    let target = Target {
        version: "base".into(),
        order: None,
        tensors_sha256: None,
        prefetch: None,
        asleep: None,
    };
    let (_target, target_seen) = watch::channel(Some(target));
    let (view, mut seen) = watch::channel(View::default());
    tokio::spawn(switch::follow(
        engines.clone(),
        target_seen,
        view,
        Arc::new(Metrics::default()),
    ));
    let (_wanted, wanted) = watch::channel("base".to_owned());
    let episode = |number: usize| {
        let (engines, wanted) = (engines.clone(), wanted.clone());
        async move {
            for turn in 0..TURNS {
                let ask = Ask {
                    prompt: TokenIds(&[1, 2], &[3]),
                    max_tokens: 16,
                    temperature: 1.0,
                    top_p: 1.0,
                    top_k: 0,
                    penalties: Default::default(),
                    seed: number as u64 * TURNS + turn,
                    stop_token_ids: Vec::new(),
                    time_left: Duration::from_secs(600),
                    experts: None,
                    conversation: None,
                };
                let answered = engines.sample(&ask, &wanted, &Default::default()).await.unwrap();
                assert!(matches!(answered, Answered::Sampled(_)), "{answered:?}");
            }
        }
    };
    let reported = async {
        for replica in [boots, hangs, crashes] {
            let names = |said: &String| said.contains(&replica.to_string());
            seen.wait_for(|view| view.message.as_ref().is_some_and(names))
                .await
                .unwrap();
        }
    };
    let all = futures::future::join_all((0..EPISODES).map(episode));
    let (_, told) = tokio::join!(all, tokio::time::timeout(Duration::from_secs(300), reported));
    told.unwrap();
    let carried = carried(&pace);
    println!(
        "the replica that works carried {:.1} % of its capacity",
        100.0 * carried
    );
    assert!(carried >= 0.95, "{carried}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_of_which_three_of_four_replicas_do_not_work_continues_without_a_void_and_names_one_that_boots() {
    let world = World::new(2).await;
    let mut settings = world.settings();
    settings.evaluate.clear();
    settings.patience.engines.request = Duration::from_millis(200);
    settings.patience.trainer = Duration::from_secs(300);
    let broken = broken().await;
    let all = broken.into_iter().chain([world.engine_address]).collect();
    settings.engines = Endpoints::Fixed(all);
    // A run of two quick iterations may end before the replica was checked. Whether the other two are asked before
    // that, and so have a trouble to be named, depends on timing: the test above waits for their names.
    let is_named = "is-named";
    world.trainer.waits_for.lock().unwrap().insert(1, is_named.to_owned());
    let run = world.start(settings, 1).await.unwrap();
    let mut seen = run.board.watch();
    let named = async {
        let says = |said: &String| said.contains(&broken[0].to_string());
        seen.wait_for(|progress| progress.message.as_ref().is_some_and(says))
            .await
            .unwrap();
        world.store().create_bytes(is_named, "").await.unwrap();
    };
    let (ended, named) = tokio::join!(run.go(), tokio::time::timeout(Duration::from_secs(300), named));
    ended.unwrap();
    named.unwrap();
    assert!(world.state().await.voids.is_empty());
    assert!(world.metas().await.iter().all(|meta| meta.outcome.is_verdict()));
    assert_eq!(*world.trainer.steps_run.lock().unwrap(), [1, 2]);
    world.verified().await;
}
