//! Agents that pass chunks of a version on to each other, over real sockets.

use crate::support::{Agent, Source, at_own_port, bearing, driver, engine, engines, model_of};
use axum::Router;
use axum::routing::get;
use grpo_contracts::access::Service;
use grpo_engine_agent::pull::sha256;
use grpo_engine_protocol::{Relay, WeightsOrder};
use std::io::Write;
use std::sync::LazyLock;
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;

const VERSION: &str = "a-v1";
const NAME: &str = "model.safetensors";
const PATH: &str = "a-v1/model.safetensors";
/// Five chunks, the last one short.
const BYTES: usize = 4 * Relay::CHUNK as usize + 1000;

/// Bytes whose chunks differ.
static CONTENT: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let byte = |at: u64| (at.wrapping_mul(2_654_435_761) >> 13) as u8;
    (0..BYTES as u64).map(byte).collect()
});

/// The order for member `own` of these URLs.
fn relayed(order: &WeightsOrder, members: &[String], own: usize) -> WeightsOrder {
    let relay = Some(Relay {
        members: members.to_vec(),
        own,
    });
    WeightsOrder { relay, ..order.clone() }
}

/// A pool of agents, a source of one large version, and the order for it. The engine never loads it: the agents
/// prefetch.
struct Pool {
    agents: Vec<Agent>,
    source: Source,
    order: WeightsOrder,
    _engine: engine::Running,
    _base: TempDir,
}

impl Pool {
    async fn of(count: usize) -> Self {
        let base = model_of(1);
        let engine = engine::start(engine::options(base.path())).await;
        let agents = Agent::of_one_pool(&engine.url, count).await;
        for agent in &agents {
            agent.wait_for(|status| status.serving.is_some()).await;
        }
        let source = Source::start().await;
        let files = vec![("config.json", b"{}".to_vec()), (NAME, CONTENT.clone())];
        let order = source.publish_files(VERSION, files, "00", |_| {});
        Self {
            agents,
            source,
            order,
            _engine: engine,
            _base: base,
        }
    }
}

fn urls(agents: &[Agent]) -> Vec<String> {
    agents.iter().map(|agent| agent.url.clone()).collect()
}

async fn has_pulled(agent: &Agent) {
    agent.wait_for(|status| status.pulled.as_deref() == Some(VERSION)).await;
    assert!(std::fs::read(agent.file(VERSION, NAME)).unwrap() == *CONTENT);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_for_three_agents_leaves_its_source_once() {
    let Pool {
        agents, source, order, ..
    } = &Pool::of(3).await;
    assert!(agents[0].status().await.relays);
    let members = urls(agents);
    for (own, agent) in agents.iter().enumerate() {
        agent.prefetch(&relayed(order, &members, own)).await;
    }
    for agent in agents {
        has_pulled(agent).await;
        let left: Vec<_> = std::fs::read_dir(agent.file(VERSION, "")).unwrap().collect();
        assert_eq!(
            left.len(),
            3,
            "config, model and manifest, and no partial copy: {left:?}"
        );
    }
    assert_eq!(source.sent(PATH), BYTES as u64);
    let metrics = agents[0].get("/metrics").await.text().await.unwrap();
    let of = |name: &str| -> u64 {
        let line = metrics.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let small = 2;
    assert_eq!(
        of("grpo_agent_pulled_source_bytes_total") + of("grpo_agent_pulled_agents_bytes_total"),
        BYTES as u64 + small
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_joins_later_gets_the_chunks_of_others_from_them() {
    let Pool {
        agents, source, order, ..
    } = &Pool::of(2).await;
    agents[0].prefetch(order).await;
    has_pulled(&agents[0]).await;
    let before = source.sent(PATH);
    agents[1].prefetch(&relayed(order, &urls(agents), 1)).await;
    has_pulled(&agents[1]).await;
    // The file is the second of the version, so chunks 0, 2 and 4 are its own.
    assert_eq!(source.sent(PATH) - before, 2 * Relay::CHUNK + 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_of_an_agent_that_is_gone_come_from_the_source() {
    let Pool {
        agents, source, order, ..
    } = &Pool::of(2).await;
    let closed = at_own_port().await;
    let gone = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let members = [urls(agents), vec![gone]].concat();
    for (own, agent) in agents.iter().enumerate() {
        agent.prefetch(&relayed(order, &members, own)).await;
    }
    for agent in agents {
        has_pulled(agent).await;
    }
    // Chunks 1 and 4 are of the agent that is gone: both fetch them.
    assert_eq!(source.sent(PATH), BYTES as u64 + Relay::CHUNK + 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_that_know_different_members_do_not_wait_for_each_other() {
    let Pool {
        agents, source, order, ..
    } = &Pool::of(2).await;
    let [a, b] = [agents[0].url.clone(), agents[1].url.clone()];
    // Each takes the other one for the owner of every chunk but its first or last.
    let stranger = at_own_port().await;
    let third = format!("http://{}", stranger.local_addr().unwrap());
    drop(stranger);
    agents[0]
        .prefetch(&relayed(order, &[third.clone(), b.clone(), b], 0))
        .await;
    agents[1].prefetch(&relayed(order, &[a.clone(), third, a], 1)).await;
    let began = std::time::Instant::now();
    for agent in agents {
        has_pulled(agent).await;
    }
    // An owner is asked for up to a minute.
    assert!(began.elapsed() < Duration::from_secs(45), "{:?}", began.elapsed());
    assert!(source.sent(PATH) <= 2 * BYTES as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_pull_without_other_agents_left_takes_no_room_beside_chunks() {
    let Pool { agents, order, .. } = &Pool::of(1).await;
    let folder = agents[0].file(VERSION, "");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(format!("{NAME}.partial")), [7; 1000]).unwrap();
    agents[0].prefetch(&relayed(order, &urls(agents), 0)).await;
    has_pulled(&agents[0]).await;
    let left: Vec<_> = std::fs::read_dir(&folder).unwrap().collect();
    assert_eq!(left.len(), 3, "config, model and manifest: {left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_chunks_of_another_agent_never_become_weights() {
    let Pool {
        agents, source, order, ..
    } = &Pool::of(1).await;
    let wrong = Router::new().route(
        "/agent/v1/chunks/{version}/{file}/{chunk}",
        get(|| async { vec![7_u8; Relay::CHUNK as usize] }),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, wrong).await });
    agents[0]
        .prefetch(&relayed(order, &[agents[0].url.clone(), url], 0))
        .await;
    has_pulled(&agents[0]).await;
    assert!(source.sent(PATH) > BYTES as u64, "all of it came from the source then");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_continues_with_the_chunks_that_are_there() {
    let Pool {
        agents, source, order, ..
    } = &Pool::of(1).await;
    // As an agent that ended in the middle leaves it: chunks 0 and 3 are in their places.
    let folder = agents[0].file(VERSION, "");
    std::fs::create_dir_all(&folder).unwrap();
    let chunk = Relay::CHUNK as usize;
    let mut copy = vec![0; BYTES];
    for at in [0, 3] {
        copy[at * chunk..(at + 1) * chunk].copy_from_slice(&CONTENT[at * chunk..(at + 1) * chunk]);
    }
    std::fs::write(folder.join(format!("{NAME}.chunks.partial")), copy).unwrap();
    let mut list = std::fs::File::create(folder.join(format!("{NAME}.list.partial"))).unwrap();
    for at in [0_u64, 3] {
        list.write_all(&at.to_le_bytes()).unwrap();
    }
    agents[0].prefetch(&relayed(order, &urls(agents), 0)).await;
    has_pulled(&agents[0]).await;
    assert_eq!(source.sent(PATH), BYTES as u64 - 2 * Relay::CHUNK);
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_are_for_agents_of_the_pool_and_for_versions_that_are_here() {
    let Pool { agents, order, .. } = &Pool::of(1).await;
    agents[0].prefetch(order).await;
    has_pulled(&agents[0]).await;
    let token = agents[0].issuer.token(&engines(), Service::EngineAgent).unwrap();
    let (other, stranger) = (bearing(&token), reqwest::Client::new());
    let sha256 = sha256(&CONTENT);
    let ask = async |client: &reqwest::Client, path: &str, sha256: &str| {
        let url = format!("{}/agent/v1/chunks/{path}?sha256={sha256}", agents[0].url);
        client.get(url).send().await.unwrap()
    };
    assert_eq!(ask(&stranger, &format!("{PATH}/0"), &sha256).await.status(), 401);
    let chunk = ask(&other, &format!("{PATH}/4"), &sha256).await;
    assert_eq!(chunk.content_length(), Some(1000));
    assert_eq!(chunk.bytes().await.unwrap(), CONTENT[BYTES - 1000..]);
    for (path, why) in [
        (format!("{PATH}/5"), "ends before chunk 5"),
        (format!("{PATH}/{}", u64::MAX), "ends before chunk"),
        ("a-v2/model.safetensors/0".to_owned(), "neither has"),
        ("..%2Fa-v1/model.safetensors/0".to_owned(), "is not a name"),
        ("a-v1/..%2F..%2Ftokens/0".to_owned(), "is not a name"),
        ("a-v1/model.safetensors.chunks.partial/0".to_owned(), "is not a name"),
    ] {
        let answer = ask(&other, &path, &sha256).await;
        assert_eq!(answer.status(), 404, "{path}");
        let text = answer.text().await.unwrap();
        assert!(text.contains(why), "{path}: {text}");
    }
    let of_another = ask(&other, &format!("{PATH}/0"), &"0".repeat(64)).await;
    assert_eq!(of_another.status(), 404, "a file of this name with another content");
    // Nothing else is for other agents of a run's pool.
    let status = other
        .get(format!("{}/agent/v1/status", agents[0].url))
        .send()
        .await
        .unwrap();
    assert_eq!(status.status(), 403);
    let order = serde_json::to_value(order).unwrap();
    let weights = other.put(format!("{}/agent/v1/weights", agents[0].url)).json(&order);
    assert_eq!(weights.send().await.unwrap().status(), 403);
    let token = agents[0].issuer.token(&driver(), Service::EngineAgent).unwrap();
    assert_eq!(ask(&bearing(&token), &format!("{PATH}/0"), &sha256).await.status(), 200);
}
