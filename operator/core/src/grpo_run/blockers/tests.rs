use super::*;
use crate::{
    fixtures::{DEMO, object},
    grpo_run::tests::{inference_pool, seen},
};

/// What a training run with an adapter of rank 16 says of the pool it refers to.
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

#[test]
fn a_run_with_a_judge_waits_for_a_pool_that_serves_and_follows_no_run() {
    let mut run: grpo_crds::GrpoRun = object(DEMO);
    run.spec.reward.process = Some(serde_json::from_value(serde_json::json!({"poolRef": {"name": "demo"}})).unwrap());
    let with = |judge: Option<InferencePool>| RunObservation {
        judge,
        ..seen(run.clone())
    };
    let reason = |seen: &RunObservation| (judge::unusable(seen), judge::unready(seen));
    let (missing, _) = reason(&with(None));
    let (at, message) = missing.unwrap();
    assert!(
        at == "JudgeMissing" && message.contains("InferencePool demo (grpo.dev)"),
        "{message}"
    );

    let (claimed, _) = reason(&with(Some(inference_pool(Some("uid"), "True", ""))));
    let (at, message) = claimed.unwrap();
    assert!(
        at == "JudgeClaimed" && message.contains("GrpoRun some-run"),
        "{message}"
    );
    let mut owned = inference_pool(None, "True", "");
    let owner = serde_json::json!({"apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun", "name": "mine", "uid": "u"});
    owned.metadata.owner_references = Some(vec![serde_json::from_value(owner).unwrap()]);
    assert!(reason(&with(Some(owned))).0.unwrap().1.contains("GrpoRun mine"));

    let (none, unready) = reason(&with(Some(inference_pool(None, "False", "0 of 1 replicas serve"))));
    assert_eq!(none, None);
    let (at, message) = unready.unwrap();
    assert!(
        at == "JudgeNotReady" && message.ends_with("0 of 1 replicas serve"),
        "{message}"
    );
    assert_eq!(reason(&with(Some(inference_pool(None, "True", "")))), (None, None));

    run.spec.mode = grpo_crds::grpo_run::Mode::Evaluate;
    let evaluates = RunObservation { ..seen(run) };
    assert_eq!(reason(&evaluates), (None, None), "an evaluation is not judged");
}
