//! Which share of prompts eight replicas have in their prefix caches, and how evenly they work.
//!
//! Each replica keeps the prefixes of its prompts and answers in blocks, as vLLM's cache does, and takes time for the
//! tokens that it has not. Episodes of groups share the prompt of their task; each has twenty turns of other lengths,
//! with a command between them. A perfect cache would be one for all replicas.

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use grpo_driver::engine::{Answered, Ask, Engines};
use grpo_driver::metrics::Metrics;
use grpo_driver::replicas::switch::{self, Target, View};
use grpo_driver::replicas::{Endpoints, Home};
use grpo_driver::retry::Budget;
use grpo_engine_protocol::{
    AgentStatus, BASE_VERSION, ChoiceLogprobs, CompletionChoice, CompletionRequest, CompletionResponse, FinishReason,
    Prompt, TokenIds, Usage,
};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

const REPLICAS: usize = 8;
const GROUPS: u64 = 16;
const SAMPLES: u64 = 8;
const TURNS: u64 = 20;
/// Tokens of a task's prompt.
const TASK: u64 = 1500;
/// Tokens of a block of a prefix cache.
const BLOCK: usize = 16;
/// Time that a replica takes for a token that it has not, and for one that it samples.
const PREFILL: Duration = Duration::from_micros(3);
const DECODE: Duration = Duration::from_micros(150);

/// SplitMix64: a number of these keys.
fn mixed(keys: &[u64]) -> u64 {
    keys.iter().fold(0, |state, key| {
        let mut z = (state ^ key).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// Blocks of prefixes.
#[derive(Default)]
struct Prefixes(HashSet<u64>);

impl Prefixes {
    /// Tokens of the longest known prefix of whole blocks; it knows all of them afterwards.
    fn take(&mut self, tokens: &[u32]) -> usize {
        let (mut prefix, mut known, mut all) = (DefaultHasher::new(), 0, true);
        for block in tokens.chunks_exact(BLOCK) {
            block.hash(&mut prefix);
            let new = self.0.insert(prefix.finish());
            all &= !new;
            known += if all { BLOCK } else { 0 };
        }
        known
    }
}

#[derive(Default)]
struct Replica {
    own: Mutex<Prefixes>,
    /// Of all replicas.
    perfect: Arc<Mutex<Prefixes>>,
    /// Prompt tokens that its cache had, and that a perfect one would have had.
    had: Mutex<[usize; 2]>,
    worked: Mutex<Duration>,
}

async fn complete(
    State(replica): State<Arc<Replica>>,
    Json(request): Json<CompletionRequest>,
) -> Json<CompletionResponse> {
    let Prompt::Tokens(prompt) = request.prompt else {
        panic!("a prompt in words");
    };
    let (own, perfect) = (
        replica.own.lock().unwrap().take(&prompt),
        replica.perfect.lock().unwrap().take(&prompt),
    );
    let seed = request.seed.unwrap();
    let tokens: Vec<u32> = (0..60 + mixed(&[seed]) % 200)
        .map(|at| mixed(&[seed, at]) as u32 % 50_000)
        .collect();
    let works = PREFILL * (prompt.len() - own) as u32 + DECODE * tokens.len() as u32;
    {
        let mut had = replica.had.lock().unwrap();
        had[0] += own;
        had[1] += perfect;
        *replica.worked.lock().unwrap() += works;
    }
    // Time passes as on an engine.
    tokio::time::sleep(works).await;
    let whole = [&prompt[..], &tokens].concat();
    replica.own.lock().unwrap().take(&whole);
    replica.perfect.lock().unwrap().take(&whole);
    Json(CompletionResponse {
        id: "c".into(),
        object: "text_completion".into(),
        created: 0,
        model: request.model,
        weights_version: BASE_VERSION.into(),
        choices: vec![CompletionChoice {
            index: 0,
            text: String::new(),
            finish_reason: FinishReason::Stop,
            stop_reason: None,
            logprobs: Some(ChoiceLogprobs {
                token_logprobs: vec![-0.5; tokens.len()],
            }),
            token_ids: tokens,
            routed_experts: None,
            weights_version: BASE_VERSION.into(),
        }],
        usage: Usage::default(),
    })
}

async fn status() -> Json<AgentStatus> {
    Json(AgentStatus::serving(BASE_VERSION))
}

/// One episode: turns whose prompt is all that was before.
async fn episode(engines: Engines, wanted: watch::Receiver<String>, group: u64, sample: u64) {
    let home = Home::default();
    let mut tokens: Vec<u32> = (0..TASK).map(|at| mixed(&[group, at]) as u32 % 50_000).collect();
    for turn in 0..TURNS {
        let seed = mixed(&[group, sample, turn]);
        let ask = Ask {
            prompt: TokenIds(&tokens, &[]),
            max_tokens: 512,
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            penalties: Default::default(),
            seed,
            stop_token_ids: Vec::new(),
            time_left: Duration::from_secs(600),
            experts: None,
            conversation: None,
        };
        let answered = engines.sample(&ask, &wanted, &home).await.unwrap();
        let Answered::Sampled(sampled) = answered else {
            panic!("{answered:?}");
        };
        tokens.extend(&sampled.answer.ids);
        // A command runs, and prints something.
        tokio::time::sleep(Duration::from_millis(mixed(&[seed, 1]) % 40)).await;
        tokens.extend((0..mixed(&[seed, 2]) % 600).map(|at| mixed(&[seed, 3, at]) as u32 % 50_000));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "busy cores change which replica is the least busy one: make test-prefixes"]
async fn eight_replicas_have_nearly_every_prefix_that_a_perfect_cache_has_and_work_evenly() {
    let perfect = Arc::default();
    let (mut replicas, mut addresses) = (Vec::new(), Vec::new());
    for _ in 0..REPLICAS {
        let replica = Arc::new(Replica {
            perfect: Arc::clone(&perfect),
            ..Replica::default()
        });
        let router = Router::new()
            .route("/v1/completions", post(complete))
            .route("/agent/v1/status", get(status))
            .with_state(replica.clone());
        replicas.push(replica);
        addresses.push(crate::world::serve(router).await);
    }
    let budget = Budget {
        request: Duration::from_secs(60),
        total: Duration::from_secs(300),
    };
    let engines = Engines::new(Endpoints::Fixed(addresses), "run", budget).unwrap();
    let target = Target {
        version: BASE_VERSION.into(),
        order: None,
        tensors_sha256: None,
        prefetch: None,
        asleep: None,
    };
    let (_target, target) = watch::channel(Some(target));
    let (view, mut seen) = watch::channel(View::default());
    tokio::spawn(switch::follow(
        engines.clone(),
        target,
        view,
        Arc::new(Metrics::default()),
    ));
    seen.wait_for(|view| view.updated == REPLICAS).await.unwrap();
    let (_wanted, wanted) = watch::channel(BASE_VERSION.to_owned());
    let all = (0..GROUPS).flat_map(|group| (0..SAMPLES).map(move |sample| (group, sample)));
    let all = all.map(|(group, sample)| tokio::spawn(episode(engines.clone(), wanted.clone(), group, sample)));
    for ended in futures::future::join_all(all).await {
        ended.unwrap();
    }
    let had = |which: usize| {
        replicas
            .iter()
            .map(|replica| replica.had.lock().unwrap()[which])
            .sum::<usize>() as f64
    };
    let worked: Vec<f64> = replicas
        .iter()
        .map(|replica| replica.worked.lock().unwrap().as_secs_f64())
        .collect();
    let share = had(0) / had(1);
    let slowest = worked.iter().copied().fold(0.0, f64::max) / (worked.iter().sum::<f64>() / REPLICAS as f64);
    println!(
        "of a perfect cache's tokens {:.2} %; slowest / mean replica {slowest:.3}",
        100.0 * share
    );
    assert!(share >= 0.95, "{share}");
    assert!(slowest <= 1.2, "{slowest}");
}
