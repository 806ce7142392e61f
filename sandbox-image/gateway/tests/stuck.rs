//! Pods that never get an address.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use grpo_gateway::core::now;
use grpo_sandbox_protocol::{LeaseRequest, Priority};
use k8s_openapi::api::core::v1::Event;
use kube::api::Api;
use serde_json::{Value, json};

use crate::played::{Gateway, Nodes, Server, bounds};

/// No pod gets far enough to need a node.
struct NoNodes;

impl Nodes for NoNodes {
    fn start(&self, _pod: &str) -> String {
        unreachable!("no pod has an address")
    }

    fn stop(&self, _pod: &str) {}
}

struct World {
    server: Server,
    gateway: Gateway,
    events: Api<Event>,
}

impl World {
    /// A pool with one pod without an address, for one waiter.
    async fn with_a_stuck_pod() -> Self {
        let server = Server::serve(Arc::new(NoNodes), 1).await;
        server.gives_no_address.store(true, Ordering::Relaxed);
        let gateway = Gateway::begin(&server, bounds(1), "{max: 1, allowUnenforced: true}").await;
        let events = Api::namespaced(server.client.clone(), "n");
        gateway.core.with(|index| index.want("r", vec![("x".into(), 1)], now()));
        let world = Self {
            server,
            gateway,
            events,
        };
        world.until_a_pod_but("").await;
        world
    }

    /// The name of the existing pod, once it differs from `before` and the gateway knows its node.
    async fn until_a_pod_but(&self, before: &str) -> String {
        let shown = async {
            loop {
                let name = self.gateway.core.look(|index| {
                    let mut shown = index.sandboxes.iter().filter(|(_, sandbox)| sandbox.node == "node-1");
                    shown.next().map(|(name, _)| name.clone())
                });
                if let Some(name) = name.filter(|name| name != before) {
                    return name;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), shown).await.unwrap()
    }

    fn warns(&self, reason: &str, message: &str) {
        self.tells("Warning", reason, message, "2026-01-01T00:00:00Z");
    }

    fn tells(&self, type_: &str, reason: &str, message: &str, at: &str) {
        let event: Value = json!({
            "metadata": {"name": reason}, "involvedObject": {}, "type": type_, "reason": reason, "message": message,
            "lastTimestamp": at,
        });
        self.server.events.lock().unwrap().push(event);
    }

    /// The known stuck pods after this many seconds.
    async fn look(&self, seconds: i64) -> Vec<(String, String)> {
        let core = &self.gateway.core;
        core.look_for_stuck(&self.events, now() + seconds * 1000).await;
        core.stuck()
            .into_iter()
            .map(|stuck| (stuck.pod, stuck.message))
            .collect()
    }
}

#[tokio::test]
async fn a_pod_whose_network_cannot_be_set_up_is_named_with_the_cause_and_then_replaced() {
    let world = World::with_a_stuck_pod().await;
    let first = world.until_a_pod_but("").await;
    world.warns(
        "FailedCreatePodSandBox",
        "failed to set up the network: no addresses left",
    );
    assert!(world.look(60).await.is_empty(), "it may be on its way");
    let named = (
        first.clone(),
        "failed to set up the network: no addresses left".to_owned(),
    );
    assert_eq!(world.look(130).await, std::slice::from_ref(&named));
    assert_eq!(world.until_a_pod_but("").await, first, "its node tries again");
    assert_eq!(world.look(310).await, [named]);
    let second = world.until_a_pod_but(&first).await;
    assert!(
        !world.server.pods.lock().unwrap().contains_key(&first),
        "{second} is in its place"
    );
    world.gateway.end().await;
}

#[tokio::test]
async fn a_pod_whose_node_pulls_a_large_image_is_named_and_left_alone() {
    let world = World::with_a_stuck_pod().await;
    let first = world.until_a_pod_but("").await;
    let named = world.look(3600).await;
    assert!(named[0].1.contains("pulls its image"), "{named:?}");
    world.warns("FailedMount", "a volume is not there yet");
    assert_eq!(
        world.look(3600).await,
        [(first.clone(), "a volume is not there yet".to_owned())]
    );
    assert_eq!(world.until_a_pod_but("").await, first);
    world.gateway.end().await;
}

#[tokio::test]
async fn a_pod_that_its_node_set_up_at_last_and_whose_image_is_pulled_is_left_alone() {
    let world = World::with_a_stuck_pod().await;
    let first = world.until_a_pod_but("").await;
    world.warns("FailedCreatePodSandBox", "cni plugin not initialized");
    world.tells("Normal", "Pulling", "Pulling image \"x\"", "2026-01-01T00:01:00Z");
    let named = world.look(3600).await;
    assert!(named[0].1.contains("pulls its image"), "{named:?}");
    assert_eq!(world.until_a_pod_but("").await, first);
    world.gateway.end().await;
}

#[tokio::test]
async fn who_waits_in_vain_hears_which_pod_is_stuck_and_why() {
    let world = World::with_a_stuck_pod().await;
    world.warns("FailedCreatePodSandBox", "no runtime for user namespaces");
    world.look(130).await;
    let request = LeaseRequest {
        id: "a".into(),
        run: "r".into(),
        image: "x".into(),
        ttl_seconds: 60,
        wait_seconds: 0,
        priority: Priority::Agent,
    };
    let error = world.gateway.core.lease(request).await.unwrap_err();
    assert!(error.message.contains("does not start: "), "{error}");
    assert!(error.message.contains("no runtime for user namespaces"), "{error}");
    world.gateway.end().await;
}
