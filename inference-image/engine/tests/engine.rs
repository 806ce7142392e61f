//! The engine over real sockets: its answers depend on nothing but the request, its seed and the weights.

#![allow(clippy::unwrap_used)]

mod chat;
mod sleep;
mod support;

use grpo_engine::Options;
use grpo_engine_protocol::{
    CompletionRequest, CompletionResponse, ErrorBody, ErrorCode, FinishReason, LoadResponse, ModelList, Prompt,
};
use serde_json::json;
use std::sync::Arc;
use support::{CONTEXT, Random, Running, options, start, write_model};

/// Tokens and the bits of their logprobs, row by row.
fn bits(answer: &CompletionResponse) -> Vec<(Vec<u32>, Vec<u32>)> {
    let rows = answer.choices.iter().map(|row| {
        let logprobs = row
            .logprobs
            .as_ref()
            .unwrap()
            .token_logprobs
            .iter()
            .map(|logprob| logprob.to_bits());
        (row.token_ids.clone(), logprobs.collect::<Vec<_>>())
    });
    rows.inspect(|(tokens, logprobs)| assert_eq!(tokens.len(), logprobs.len()))
        .collect()
}

fn random_request(random: &mut Random, shared: &[u32]) -> CompletionRequest {
    let mut prompt = if random.below(2) == 0 {
        shared[..random.below(200) as usize].to_vec()
    } else {
        Vec::new()
    };
    let len = 1 + random.below(120) as usize;
    prompt.extend(random.prompt(len));
    CompletionRequest {
        temperature: [1.0, 0.7, 0.0, 1.3][random.below(4) as usize],
        top_p: [1.0, 0.9][random.below(2) as usize],
        top_k: [0, 20][random.below(2) as usize],
        n: 1 + random.below(3) as u32,
        ..CompletionRequest::of_tokens("policy", prompt, 1 + random.below(60) as u32, random.next())
    }
}

async fn all_at_once(engine: &Arc<Running>, requests: &[CompletionRequest]) -> Vec<CompletionResponse> {
    let calls = requests.iter().cloned().map(|request| {
        let engine = engine.clone();
        tokio::spawn(async move { engine.complete(&request).await.unwrap() })
    });
    let mut answers = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        answers.push(call.await.unwrap());
    }
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_has_the_same_bits_alone_and_among_random_neighbours() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), 1);
    let mut random = Random(42);
    let shared = random.prompt(200);
    let requests: Vec<_> = (0..40).map(|_| random_request(&mut random, &shared)).collect();

    let engine = start(options(dir.path())).await;
    let mut alone = Vec::new();
    for request in &requests {
        alone.push(bits(&engine.complete(request).await.unwrap()));
    }
    // Other widths, several threads, no reuse of prefixes, and the reverse order must not change an answer.
    for (max_rows, threads, prefix_cache_bytes) in [(16, 1, 0), (5, 2, 1 << 20), (64, 3, 64 << 20)] {
        let crowded = Arc::new(
            start(support::with(
                options(dir.path()),
                max_rows,
                threads,
                prefix_cache_bytes,
            ))
            .await,
        );
        let mut reversed = requests.clone();
        reversed.reverse();
        let answers = all_at_once(&crowded, &reversed).await;
        for (alone, crowded) in alone.iter().rev().zip(&answers) {
            assert_eq!(*alone, bits(crowded));
        }
    }
}

#[tokio::test]
async fn a_seed_repeats_an_answer_and_another_seed_does_not() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), 1);
    let engine = start(options(dir.path())).await;
    let request = |seed| CompletionRequest::of_tokens("policy", vec![5, 6, 7], 40, seed);
    let first = engine.complete(&request(1)).await.unwrap();
    assert_eq!(bits(&first), bits(&engine.complete(&request(1)).await.unwrap()));
    assert_ne!(bits(&first), bits(&engine.complete(&request(2)).await.unwrap()));
    assert_eq!(first.weights_version, "base");
}

#[tokio::test]
async fn rows_are_numbered_prompt_by_prompt_and_differ_from_each_other() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), 1);
    let engine = start(options(dir.path())).await;
    let request = CompletionRequest {
        prompt: Prompt::Batch(vec![vec![5, 6, 7], vec![8, 9]]),
        n: 3,
        ignore_eos: true,
        ..CompletionRequest::of_tokens("policy", vec![], 20, 11)
    };
    let answer = engine.complete(&request).await.unwrap();
    assert_eq!(
        answer.choices.iter().map(|row| row.index).collect::<Vec<_>>(),
        (0..6).collect::<Vec<_>>()
    );
    let rows = bits(&answer);
    let different: std::collections::BTreeSet<_> = rows.iter().collect();
    assert_eq!(different.len(), 6);
    assert_eq!((answer.usage.prompt_tokens, answer.usage.completion_tokens), (5, 120));
    // Row 0 of the batch equals the answer to the first prompt alone.
    let single = CompletionRequest {
        ignore_eos: true,
        ..CompletionRequest::of_tokens("policy", vec![5, 6, 7], 20, 11)
    };
    assert_eq!(bits(&engine.complete(&single).await.unwrap())[0], rows[0]);
}

#[tokio::test]
async fn a_prompt_extended_by_its_own_tokens_goes_on_as_the_longer_row_did() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), 1);
    let engine = start(options(dir.path())).await;
    let whole = CompletionRequest {
        ignore_eos: true,
        ..CompletionRequest::of_tokens("policy", vec![5, 6, 7], 50, 3)
    };
    let whole = bits(&engine.complete(&whole).await.unwrap()).remove(0);
    let mut prompt = vec![5, 6, 7];
    prompt.extend(&whole.0[..30]);
    let rest = CompletionRequest {
        ignore_eos: true,
        ..CompletionRequest::of_tokens("policy", prompt, 20, 3)
    };
    let rest = bits(&engine.complete(&rest).await.unwrap()).remove(0);
    assert_eq!((&whole.0[30..], &whole.1[30..]), (&rest.0[..], &rest.1[..]));
}

#[tokio::test]
async fn a_stop_token_ends_the_row_and_is_part_of_it() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), 1);
    let engine = start(options(dir.path())).await;
    let free = CompletionRequest {
        ignore_eos: true,
        ..CompletionRequest::of_tokens("policy", vec![4], 60, 5)
    };
    let row = engine.complete(&free).await.unwrap().choices.remove(0);
    assert_eq!(
        (row.finish_reason, row.stop_reason, row.token_ids.len()),
        (FinishReason::Length, None, 60)
    );

    let stop = row.token_ids[10];
    let first = row.token_ids.iter().position(|token| *token == stop).unwrap();
    let stopped = CompletionRequest {
        stop_token_ids: vec![stop],
        ..free.clone()
    };
    let stopped = engine.complete(&stopped).await.unwrap().choices.remove(0);
    assert_eq!(
        (stopped.finish_reason, stopped.stop_reason),
        (FinishReason::Stop, Some(stop))
    );
    assert_eq!(stopped.token_ids, row.token_ids[..=first]);
}

#[tokio::test]
async fn ids_and_logprobs_come_only_when_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), 1);
    let engine = start(options(dir.path())).await;
    let mut request = CompletionRequest::of_tokens("policy", vec![4], 3, 5);
    (request.return_token_ids, request.logprobs) = (false, None);
    let row = engine.complete(&request).await.unwrap().choices.remove(0);
    assert!(row.token_ids.is_empty() && row.logprobs.is_none());
}

#[tokio::test]
async fn what_cannot_be_honoured_is_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), 1);
    let engine = start(options(dir.path())).await;
    let text = CompletionRequest {
        prompt: Prompt::Text("hello".to_owned()),
        ..CompletionRequest::of_tokens("policy", vec![], 3, 5)
    };
    assert_eq!(
        engine.complete(&text).await.unwrap_err().code,
        ErrorCode::TextPromptUnsupported
    );
    let long = CompletionRequest::of_tokens("policy", vec![4], CONTEXT as u32, 5);
    assert_eq!(
        engine.complete(&long).await.unwrap_err().code,
        ErrorCode::ContextTooLong
    );
    let url = format!("{}/v1/completions", engine.url);
    let bias = json!({"prompt": [4], "logit_bias": {"4": 1.1}});
    let answer = engine.client.post(&url).json(&bias).send().await.unwrap();
    assert_eq!(answer.status(), 400);
    assert!(answer.json::<ErrorBody>().await.unwrap().message.contains("logit_bias"));
    let wrong = engine
        .complete_from(&CompletionRequest::of_tokens("m", vec![4], 3, 5), Some("a-v9"))
        .await
        .unwrap_err();
    assert_eq!(
        (wrong.code, wrong.serving.as_deref()),
        (ErrorCode::WrongWeights, Some("base"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn more_requests_than_may_wait_are_refused_and_the_others_are_answered() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), 1);
    let mut options = options(dir.path());
    (options.max_rows, options.max_waiting) = (1, 2);
    let engine = Arc::new(start(options).await);
    let calls: Vec<_> = (0..20)
        .map(|seed| {
            let engine = engine.clone();
            let request = CompletionRequest {
                ignore_eos: true,
                ..CompletionRequest::of_tokens("policy", vec![4], 400, seed)
            };
            tokio::spawn(async move { engine.complete(&request).await })
        })
        .collect();
    let mut refused = 0;
    for call in calls {
        match call.await.unwrap() {
            Ok(answer) => assert_eq!(answer.choices[0].token_ids.len(), 400),
            Err(error) => {
                assert_eq!(error.code, ErrorCode::QueueFull);
                refused += 1;
            }
        }
    }
    assert!((1..20).contains(&refused), "{refused} of 20 were refused");
}

/// A metric now.
async fn metric(engine: &Running, name: &str) -> u64 {
    let metrics = engine
        .client
        .get(format!("{}/metrics", engine.url))
        .send()
        .await
        .unwrap();
    let metrics = metrics.text().await.unwrap();
    let line = metrics
        .lines()
        .find(|line| line.split(' ').next() == Some(name))
        .unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_wait_until_there_is_memory_for_their_keys_and_values_and_one_always_runs() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), 1);
    let request = CompletionRequest {
        n: 8,
        ignore_eos: true,
        ..CompletionRequest::of_tokens("policy", vec![5, 6, 7], 40, 3)
    };
    let model = grpo_engine::model::Model::load(dir.path(), "base", None).unwrap();
    let row = 43_usize.div_ceil(grpo_model::decode::BLOCK_LEN) * model.decoder.block_bytes();
    let mut answers = Vec::new();
    for (kv_bytes, at_a_time) in [(None, 8), (Some(4 * row), 4), (Some(2 * row - 1), 1), (Some(0), 1)] {
        let engine = start(Options {
            kv_bytes,
            ..options(dir.path())
        })
        .await;
        answers.push(bits(&engine.complete(&request).await.unwrap()));
        let (found, least) = (metric(&engine, "grpo_engine_passes_total").await, 40 * 8 / at_a_time);
        assert!(
            (least..least + 12).contains(&found),
            "{kv_bytes:?}: {found} passes, not about {least}"
        );
        let limit = metric(&engine, "grpo_engine_kv_limit_bytes").await;
        assert!(kv_bytes.is_none_or(|given| given as u64 == limit), "{limit}");
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn new_weights_under_traffic_drop_nothing_and_every_row_is_of_one_version() {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_model(old.path(), 1);
    write_model(new.path(), 2);
    let engine = Arc::new(start(options(old.path())).await);
    let before = engine.state().await;
    let request = |seed| CompletionRequest {
        ignore_eos: true,
        ..CompletionRequest::of_tokens("policy", Random(seed).prompt(40), 200, seed)
    };
    let calls: Vec<_> = (0..48)
        .map(|seed| {
            let engine = engine.clone();
            tokio::spawn(async move { (seed, engine.complete(&request(seed)).await.unwrap()) })
        })
        .collect();
    while engine.state().await.running == 0 {
        tokio::task::yield_now().await;
    }
    let load = json!({"dir": new.path(), "version": "a-v1"});
    let loaded: LoadResponse = engine
        .client
        .post(format!("{}/admin/load", engine.url))
        .json(&load)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    let after = engine.state().await;
    assert_eq!((loaded.version.as_str(), after.version.as_str()), ("a-v1", "a-v1"));
    assert_ne!(before.sha256, after.sha256);

    let mut versions = std::collections::BTreeMap::new();
    let mut answers = Vec::new();
    for call in calls {
        let (seed, answer) = call.await.unwrap();
        assert!(
            answer
                .choices
                .iter()
                .all(|row| row.weights_version == answer.weights_version)
        );
        *versions.entry(answer.weights_version.clone()).or_insert(0) += 1;
        answers.push((seed, answer));
    }
    assert!(
        versions.get("base").is_some_and(|count| *count > 0),
        "nothing finished on the old version: {versions:?}"
    );
    // Each version's answers equal those of an idle engine.
    let fresh = start(options(old.path())).await;
    for (seed, answer) in &answers {
        let again = if answer.weights_version == "base" {
            &fresh
        } else {
            &*engine
        };
        assert_eq!(bits(answer), bits(&again.complete(&request(*seed)).await.unwrap()));
    }
}

#[tokio::test]
async fn weights_that_are_not_what_was_ordered_leave_the_old_version_serving() {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_model(old.path(), 1);
    write_model(new.path(), 2);
    let engine = start(options(old.path())).await;
    let before = engine.state().await;
    for load in [
        json!({"dir": new.path(), "version": "a-v1", "sha256": "0".repeat(64)}),
        json!({"dir": new.path().join("nothing"), "version": "a-v1"}),
    ] {
        let answer = engine
            .client
            .post(format!("{}/admin/load", engine.url))
            .json(&load)
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), 422);
        assert_eq!(answer.json::<ErrorBody>().await.unwrap().code, ErrorCode::LoadFailed);
    }
    assert_eq!(engine.state().await, before);
}

#[tokio::test]
async fn a_caller_that_hangs_up_takes_its_rows_with_it() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), 1);
    let engine = Arc::new(start(options(dir.path())).await);
    let long = CompletionRequest {
        n: 1000,
        ignore_eos: true,
        ..CompletionRequest::of_tokens("policy", vec![4], CONTEXT as u32 - 1, 1)
    };
    let caller = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.complete(&long).await })
    };
    while engine.state().await.running == 0 {
        tokio::task::yield_now().await;
    }
    caller.abort();
    loop {
        let state = engine.state().await;
        if state.running + state.waiting == 0 {
            break;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn models_health_and_metrics_answer() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), 1);
    let engine = start(options(dir.path())).await;
    engine
        .complete(&CompletionRequest::of_tokens("policy", vec![4], 3, 5))
        .await
        .unwrap();
    let get = |path: &str| engine.client.get(format!("{}{path}", engine.url)).send();
    let models: ModelList = get("/v1/models").await.unwrap().json().await.unwrap();
    assert_eq!(
        (models.data[0].id.as_str(), models.data[0].max_model_len),
        ("policy", CONTEXT as u32)
    );
    assert_eq!(get("/healthz").await.unwrap().status(), 200);
    let metrics = get("/metrics").await.unwrap().text().await.unwrap();
    assert!(metrics.contains("grpo_engine_requests_total 1"), "{metrics}");
    assert_eq!(get("/nowhere").await.unwrap().status(), 404);
}
