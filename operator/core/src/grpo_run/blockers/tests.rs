use grpo_crds::grpo_run::Phase;

use super::*;
use crate::{
    fixtures::{DEMO, object},
    grpo_run::{
        decide::decide,
        tests::{condition, inference_pool, running_demo, seen},
    },
    settings::Settings,
};

/// The blocker from the pool of a training run with an adapter of rank 16.
fn of_pool(engine: &str, lora: Option<u32>, own: bool) -> Option<Blocker> {
    let mut run: grpo_crds::GrpoRun = object(DEMO);
    run.spec.model.lora = Some(serde_json::from_value(serde_json::json!({"rank": 16})).unwrap());
    if !own {
        run.spec.inference = serde_json::from_value(serde_json::json!({"poolRef": {"name": "demo"}})).unwrap();
    }
    let mut pool = inference_pool(None, "True", "");
    pool.spec.model = run.spec.model.source();
    pool.spec.engine = serde_json::from_value(serde_json::json!({engine: {}})).unwrap();
    pool.spec.lora = lora.map(|max_rank| grpo_crds::inference_pool::LoraLimits {
        max_rank,
        max_adapters: 2,
    });
    inference_unusable(&RunObservation {
        inference: Some(pool),
        ..seen(run)
    })
}

#[test]
fn a_run_that_publishes_adapters_waits_for_a_pool_that_loads_them_and_says_what_to_change() {
    for (engine, lora, words) in [
        ("embedded", None, "embedded engine"),
        ("vllm", None, "spec.lora: {maxRank: 16}"),
        ("vllm", Some(8), "raise its spec.lora.maxRank"),
    ] {
        let (reason, message) = of_pool(engine, lora, false).unwrap();
        assert_eq!(reason, "InferencePoolTakesNoAdapter");
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(of_pool("vllm", Some(16), false), None);
    assert_eq!(of_pool("embedded", None, true), None);
}

#[test]
fn a_run_that_replays_experts_waits_for_a_pool_that_reports_them() {
    let mut run: grpo_crds::GrpoRun = object(DEMO);
    run.spec.algorithm.router_replay = Some(true);
    run.spec.inference = serde_json::from_value(serde_json::json!({"poolRef": {"name": "demo"}})).unwrap();
    let mut pool = inference_pool(None, "True", "").spec;
    pool.engine = serde_json::from_value(serde_json::json!({"vllm": {}})).unwrap();
    let words = experts_unreported(&run.spec, &pool).unwrap();
    assert!(words.contains("spec.routedExperts: true"), "{words}");
    assert_eq!(experts_unreported(&run.spec, &pool.clone().reporting_experts()), None);
    run.spec.algorithm.router_replay = None;
    assert_eq!(experts_unreported(&run.spec, &pool), None, "it may be dense");
}

/// The blocker from the shared pool of a run of this mode; the pool has this engine and this status.
fn of_shared(mode: Mode, engine: serde_json::Value, status: serde_json::Value) -> Option<Blocker> {
    let mut run: grpo_crds::GrpoRun = object(DEMO);
    run.spec.mode = mode;
    run.spec.inference = serde_json::from_value(serde_json::json!({"poolRef": {"name": "demo"}})).unwrap();
    let mut pool = inference_pool(None, "True", "");
    pool.spec.model = run.spec.model.source();
    pool.spec.engine = serde_json::from_value(engine).unwrap();
    pool.status = Some(serde_json::from_value(status).unwrap());
    inference_unusable(&RunObservation {
        inference: Some(pool),
        ..seen(run)
    })
}

#[test]
fn a_run_waits_for_a_pool_that_serves_the_weights_of_another_run_and_says_how_to_start_it_again() {
    let embedded = || serde_json::json!({"embedded": {}});
    let by = |name: &str, uid: &str| serde_json::json!({"name": name, "uid": uid});
    let trained = serde_json::json!({"weights": "base,l1-v5", "weightsOf": by("first", "uid-of-another")});
    for mode in [Mode::Train, Mode::Evaluate] {
        let (reason, message) = of_shared(mode, embedded(), trained.clone()).unwrap();
        assert_eq!(reason, "InferencePoolServesTrainedWeights");
        for words in [
            "l1-v5",
            "GrpoRun first",
            "kubectl delete pods -n team -l grpo.dev/inference-pool=demo",
        ] {
            assert!(message.contains(words), "{message}");
        }
        let unanswered = of_shared(
            mode,
            embedded(),
            serde_json::json!({"weightsOf": by("first", "uid-of-another")}),
        );
        assert!(
            unanswered.unwrap().1.contains("GrpoRun first"),
            "an agent missed a question"
        );
        for usable in [
            serde_json::json!({"weights": "base", "weightsOf": by("first", "uid-of-another")}),
            serde_json::json!({"weights": "l1-v5", "weightsOf": by("demo", "uid-1")}),
            serde_json::json!({"weights": "l1-v5", "claimedBy": by("demo", "uid-1")}),
            serde_json::json!({}),
        ] {
            assert_eq!(of_shared(mode, embedded(), usable.clone()), None, "{usable}");
        }
    }
}

#[test]
fn a_run_that_trains_waits_for_a_pool_to_which_weights_can_be_brought() {
    for engine in ["vllm", "sglang"] {
        let of = |nodes: u32| serde_json::json!({engine: {"tensorParallel": 2, "nodes": nodes}});
        let (reason, message) = of_shared(Mode::Train, of(2), serde_json::json!({})).unwrap();
        assert_eq!(reason, "InferencePoolTakesNoWeights");
        assert!(message.contains("nodes: 1"), "{message}");
        assert_eq!(of_shared(Mode::Train, of(1), serde_json::json!({})), None);
        assert_eq!(of_shared(Mode::Evaluate, of(2), serde_json::json!({})), None);
    }
}

#[test]
fn a_run_that_trains_waits_for_a_pool_that_returns_token_ids() {
    let chat = || serde_json::json!({"external": {"url": "https://a.b/v1", "api": "Chat"}});
    let probed = serde_json::json!({"conditions": [{
        "type": "Probed", "status": "True", "reason": "Answered", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]});
    let (reason, message) = of_shared(Mode::Train, chat(), probed.clone()).unwrap();
    assert_eq!(reason, "SamplerIsFrozen");
    assert!(message.contains("neither token ids nor logprobs"), "{message}");
    assert_eq!(of_shared(Mode::Evaluate, chat(), probed), None);
}

/// A run of this mode with turns judged by the pool `judge`.
fn judged(mode: Mode, judge: Option<InferencePool>) -> RunObservation {
    let mut run: grpo_crds::GrpoRun = object(DEMO);
    run.spec.mode = mode;
    run.spec.reward.process = Some(serde_json::from_value(serde_json::json!({"poolRef": {"name": "judge"}})).unwrap());
    RunObservation {
        judge,
        run,
        ..running_demo()
    }
}

#[test]
fn a_run_whose_turns_are_judged_waits_for_a_judge_that_serves_its_own_model() {
    let free = || inference_pool(None, "True", "");
    let owned = |mut pool: InferencePool| {
        pool.metadata.labels = Some([(names::RUN.to_owned(), "mine".to_owned())].into());
        pool
    };
    let serving = |weights: &str| {
        let mut pool = free();
        pool.status.as_mut().unwrap().weights = Some(weights.to_owned());
        pool
    };
    let external = |mut pool: InferencePool| {
        let engine = serde_json::json!({"external": {"url": "http://judge.example.com", "weights": "Frozen"}});
        pool.spec.engine = serde_json::from_value(engine).unwrap();
        pool
    };
    let new = || InferencePool { status: None, ..free() };
    let claimed = || inference_pool(Some("uid-of-another"), "True", "");
    let unready = || inference_pool(None, "False", "0 of 1 replicas serve; no image");
    let cases = [
        (None, "JudgeMissing", "there is no InferencePool judge (grpo.dev)"),
        (Some(owned(free())), "JudgeOwned", "the own pool of GrpoRun mine"),
        (Some(owned(new())), "JudgeOwned", "name a pool that no run owns"),
        (Some(claimed()), "JudgeClaimed", "the weights of GrpoRun some-run"),
        (
            Some(serving("base,a-v3")),
            "JudgeServesTrainedWeights",
            "still serves a-v3, the weights of a run",
        ),
        (
            Some(unready()),
            "JudgeNotReady",
            "InferencePool judge (grpo.dev): 0 of 1 replicas serve; no image",
        ),
        (Some(new()), "JudgeNotReady", "has not been looked at yet"),
        (Some(serving("base")), "", ""),
        (Some(external(serving("a-v3"))), "", ""),
        (Some(free()), "", ""),
    ];
    for (judge, reason, words) in cases {
        let seen = judged(Mode::Train, judge.clone());
        let early = judge_unusable(&seen);
        let waits = early.clone().or_else(|| judge_unready(&seen));
        let waits = waits.map_or_else(Default::default, |(reason, message)| (reason.text(), message));
        assert_eq!(waits.0, reason, "{waits:?}");
        assert!(waits.1.contains(words), "{waits:?}");
        assert_eq!(
            early.is_some(),
            !["", "JudgeNotReady"].contains(&reason),
            "{reason}: before admission"
        );

        let evaluation = judged(Mode::Evaluate, judge);
        assert_eq!(judge_unusable(&evaluation).or_else(|| judge_unready(&evaluation)), None);
    }
}

#[test]
fn a_judge_that_goes_or_fails_ends_no_run_and_no_pod_and_is_named_until_it_serves_again() {
    for (judge, of, reason) in [
        (None, "Admitted", "JudgeMissing"),
        (
            Some(inference_pool(None, "False", "0 of 1 replicas serve")),
            "Provisioned",
            "JudgeNotReady",
        ),
    ] {
        let decision = decide(&judged(Mode::Train, judge), &Settings::admitting_unsupported());
        let found = condition(&decision, of);
        assert_eq!((found.0.as_str(), found.1.as_str()), ("False", reason));
        assert!(
            decision.give_back.is_empty() && decision.delete_pods.is_empty() && decision.create.is_empty(),
            "{reason}"
        );
        assert_eq!(condition(&decision, "Failed").0, "False");
    }
    let again = judged(Mode::Train, Some(inference_pool(None, "True", "")));
    let decision = decide(&again, &Settings::admitting_unsupported());
    assert_eq!(decision.status.phase, Some(Phase::Running));
}
