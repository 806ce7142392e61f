//! Versions with a delta from the version before, over real sockets and with a real engine.

use crate::support::{Agent, Source, engine, model_of};
use grpo_engine_protocol::{Relay, WeightsOrder};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const WHOLE: &str = "a-v2/model.safetensors";
const DELTA: &str = "a-v2/model.safetensors.delta";

/// An agent that serves version 1, and the order for version 2, which differs in a few values.
struct Step {
    agent: Agent,
    source: Source,
    next: WeightsOrder,
    tensors: String,
    _engine: engine::Running,
    _base: TempDir,
}

impl Step {
    async fn begun() -> Self {
        let base = model_of(1);
        let engine = engine::start(engine::options(base.path())).await;
        let (agent, source) = (Agent::before(&engine.url).await, Source::start().await);
        let (first, _) = source.publish("a-v1", 2);
        let (next, tensors) = source.publish_step("a-v2", "a-v1");
        agent.order(&first).await;
        agent.wait_until_serving("a-v1").await;
        Self {
            agent,
            source,
            next,
            tensors,
            _engine: engine,
            _base: base,
        }
    }

    /// Has the agent serve version 2; the weights are right however it got them.
    async fn end(&self) {
        self.agent.order(&self.next).await;
        let status = self.agent.wait_until_serving("a-v2").await;
        assert_eq!(status.loaded_sha256.as_ref(), Some(&self.tensors));
        let made = std::fs::read(self.agent.file("a-v2", "model.safetensors")).unwrap();
        assert!(made == self.source.file(WHOLE));
    }

    fn asked_for(&self, path: &str) -> bool {
        self.source.fetched().iter().any(|(name, _)| name == path)
    }

    async fn counted(&self, name: &str) -> u64 {
        let metrics = self.agent.get("/metrics").await.text().await.unwrap();
        let line = metrics.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_comes_as_a_delta_to_an_agent_that_has_the_version_before() {
    let step = Step::begun().await;
    step.end().await;
    assert!(step.asked_for(DELTA) && !step.asked_for(WHOLE));
    assert_eq!(step.counted("grpo_agent_made_files_total").await, 1);
    let mut left: Vec<_> = std::fs::read_dir(step.agent.file("a-v2", "")).unwrap().collect();
    left.retain(|entry| {
        entry
            .as_ref()
            .unwrap()
            .file_name()
            .to_string_lossy()
            .contains("partial")
    });
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delta_is_made_into_the_next_version_while_the_old_one_serves() {
    let step = Step::begun().await;
    step.agent.prefetch(&step.next).await;
    let status = step
        .agent
        .wait_for(|status| status.pulled.as_deref() == Some("a-v2"))
        .await;
    assert_eq!(status.serving.as_deref(), Some("a-v1"));
    assert!(step.asked_for(DELTA) && !step.asked_for(WHOLE));
    let fetched = step.source.fetched().len();
    step.end().await;
    assert_eq!(step.source.fetched().len(), fetched);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_joins_gets_the_version_whole() {
    let step = Step::begun().await;
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let joined = Agent::before(&engine.url).await;
    joined.order(&step.next).await;
    joined.wait_until_serving("a-v2").await;
    assert!(step.asked_for(WHOLE) && !step.asked_for(DELTA));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_base_that_changed_on_disk_is_found_out_and_the_version_comes_whole() {
    let step = Step::begun().await;
    let base = step.agent.file("a-v1", "model.safetensors");
    let mut bytes = std::fs::read(&base).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&base, bytes).unwrap();
    step.end().await;
    assert!(step.asked_for(DELTA) && step.asked_for(WHOLE));
    assert_eq!(step.counted("grpo_agent_unmade_files_total").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_base_of_another_checksum_is_no_base() {
    let step = Step::begun().await;
    let other = step.source.change_manifest(&step.next, |manifest| {
        manifest.deltas[0].base_sha256 = "0".repeat(64);
    });
    let step = Step { next: other, ..step };
    step.end().await;
    assert!(!step.asked_for(DELTA) && step.asked_for(WHOLE));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delta_that_is_not_the_manifests_is_thrown_away_and_the_version_comes_whole() {
    let step = Step::begun().await;
    step.source.corrupt(DELTA);
    step.end().await;
    assert!(step.asked_for(DELTA) && step.asked_for(WHOLE));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delta_that_its_store_lacks_is_missed_and_the_version_comes_whole() {
    let step = Step::begun().await;
    step.source.remove(DELTA);
    step.end().await;
    assert!(step.asked_for(DELTA) && step.asked_for(WHOLE));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_transfer_of_a_delta_continues_where_it_ended() {
    let step = Step::begun().await;
    step.source.break_after(DELTA, 20);
    step.end().await;
    assert!(!step.asked_for(WHOLE));
    let ranges: Vec<_> = step
        .source
        .fetched()
        .into_iter()
        .filter(|(name, _)| name == DELTA)
        .collect();
    assert_eq!(ranges.len(), 2, "{ranges:?}");
    assert!(ranges[1].1.is_some(), "{ranges:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delta_under_the_name_of_another_file_or_outside_of_its_folder_is_not_touched() {
    for name in ["config.json", "manifest.json", "../a-v1/model.safetensors", "x.partial"] {
        let step = Step::begun().await;
        let other = step.source.change_manifest(&step.next, |manifest| {
            manifest.deltas[0].file.name = name.to_owned();
        });
        let step = Step { next: other, ..step };
        let base = std::fs::read(step.agent.file("a-v1", "model.safetensors")).unwrap();
        step.end().await;
        assert!(step.asked_for(WHOLE), "{name}");
        let after = std::fs::read(step.agent.file("a-v1", "model.safetensors")).unwrap();
        assert!(after == base, "{name}");
        assert_eq!(step.counted("grpo_agent_unmade_files_total").await, 0, "{name}");
    }
}

/// The one fetches a large delta, the other the whole file, both by chunks from each other: neither waits for chunks
/// that the other never has.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_with_the_version_before_and_one_without_do_not_wait_for_each_other() {
    let (bases, source) = ([model_of(1), model_of(1)], Source::start().await);
    let mut engines = Vec::new();
    for base in &bases {
        engines.push(engine::start(engine::options(base.path())).await);
    }
    let urls: Vec<&str> = engines.iter().map(|engine| engine.url.as_str()).collect();
    let agents = Agent::of_one_pool_before(&urls).await;
    let members: Vec<String> = agents.iter().map(|agent| agent.url.clone()).collect();
    let (first, next, large) = source.publish_large_steps(6 * Relay::CHUNK as usize);
    agents[0].order(&first).await;
    agents[0].wait_until_serving("a-v1").await;
    let began = Instant::now();
    for (own, agent) in agents.iter().enumerate() {
        let relay = Some(Relay {
            members: members.clone(),
            own,
        });
        agent.order(&WeightsOrder { relay, ..next.clone() }).await;
    }
    for agent in &agents {
        agent.wait_until_serving("a-v2").await;
        assert!(std::fs::read(agent.file("a-v2", "large.bin")).unwrap() == large);
    }
    assert!(source.sent("a-v2/large.bin.delta") > 2 * Relay::CHUNK);
    // An owner is asked for up to a minute.
    assert!(began.elapsed() < Duration::from_secs(45), "{:?}", began.elapsed());
}
