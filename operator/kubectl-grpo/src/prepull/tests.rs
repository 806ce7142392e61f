//! Pulls against a simulated API server on a socket: its kubelets pull images named `good`, and no others.

use super::pulls::State;
use super::*;
use axum::extract::{Path as InPath, Query, State as Shared};
use axum::http::StatusCode;
use axum::routing::{delete, get};
use axum::{Json, Router};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

#[derive(Default)]
struct Played {
    /// Each pod with the number of times it was listed.
    pods: BTreeMap<String, (Value, u32)>,
    made: Vec<String>,
    most_on_a_node: usize,
    /// The number of pods that a full quota refuses first.
    refuses: u32,
    selectors: Vec<String>,
    /// The answers to the next deletions, in place of deleting.
    refuses_to_delete: Vec<u16>,
}

type World = Arc<Mutex<Played>>;

fn node_of(pod: &Value) -> String {
    let term = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0";
    let term = pod.pointer(term).unwrap();
    term["matchFields"][0]["values"][0].as_str().unwrap().to_owned()
}

/// The kubelet's status at the n-th look.
fn status(pod: &Value, looks: u32) -> Value {
    let image = pod["spec"]["containers"][0]["image"].as_str().unwrap();
    let waiting = |reason: &str, message: &str| json!({"waiting": {"reason": reason, "message": message}});
    let (id, state) = match (looks, image.starts_with("good")) {
        (0, _) => ("", waiting("ContainerCreating", "")),
        (_, true) => ("sha256:ab", waiting("RunContainerError", "no such file")),
        (_, false) => ("", waiting("ImagePullBackOff", "not found")),
    };
    let container =
        json!({"name": "image", "image": image, "imageID": id, "ready": false, "restartCount": 0, "state": state});
    json!({"phase": "Pending", "containerStatuses": [container]})
}

fn refusal(code: u16, reason: &str, message: &str) -> (StatusCode, Json<Value>) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message});
    (StatusCode::from_u16(code).unwrap(), Json(status))
}

async fn list(Shared(world): Shared<World>, Query(query): Query<HashMap<String, String>>) -> Json<Value> {
    let mut world = world.lock().unwrap();
    let selector = query["labelSelector"].clone();
    let call = selector.strip_prefix("grpo.dev/prepull=").unwrap();
    let mut items = Vec::new();
    for (pod, looks) in world
        .pods
        .values_mut()
        .filter(|(pod, _)| pod["metadata"]["labels"][CALL] == call)
    {
        let mut shown = pod.clone();
        shown["status"] = status(pod, *looks);
        *looks += 1;
        items.push(shown);
    }
    Json(json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}))
}

async fn create(Shared(world): Shared<World>, Json(pod): Json<Value>) -> (StatusCode, Json<Value>) {
    let mut world = world.lock().unwrap();
    if world.refuses > 0 {
        world.refuses -= 1;
        return refusal(403, "Forbidden", "pods \"x\" is forbidden: exceeded quota: pods");
    }
    let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
    world.made.push(name.clone());
    world.pods.insert(name, (pod.clone(), 0));
    let mut on_node: HashMap<String, usize> = HashMap::new();
    world
        .pods
        .values()
        .for_each(|(pod, _)| *on_node.entry(node_of(pod)).or_default() += 1);
    world.most_on_a_node = world.most_on_a_node.max(*on_node.values().max().unwrap());
    (StatusCode::CREATED, Json(pod))
}

async fn remove(Shared(world): Shared<World>, InPath(name): InPath<String>) -> (StatusCode, Json<Value>) {
    let mut world = world.lock().unwrap();
    if let Some(code) = world.refuses_to_delete.pop() {
        return refusal(code, "", "not now");
    }
    match world.pods.remove(&name) {
        Some((pod, _)) => (StatusCode::OK, Json(pod)),
        None => refusal(404, "NotFound", "no such pod"),
    }
}

async fn nodes(Shared(world): Shared<World>, Query(query): Query<HashMap<String, String>>) -> Json<Value> {
    let selector = query.get("labelSelector").cloned().unwrap_or_default();
    world.lock().unwrap().selectors.push(selector);
    let node = |name: &str, os: &str| json!({"metadata": {"name": name, "labels": {"kubernetes.io/os": os}}});
    let items = [node("n1", "linux"), node("n2", "linux"), node("w1", "windows")];
    Json(json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}))
}

/// The pulls of a call that came to its end.
async fn pulled(cluster: &Cluster, order: &PrepullRequest) -> Vec<Pull> {
    let done = prepull(cluster, "prepull-ab", order).await.unwrap();
    done.ended.unwrap();
    done.pulls
}

async fn started(refuses: u32) -> (World, Cluster) {
    let world: World = Arc::new(Mutex::new(Played {
        refuses,
        ..Played::default()
    }));
    let router = Router::new()
        .route("/api/v1/nodes", get(nodes))
        .route("/api/v1/namespaces/team/pods", get(list).post(create))
        .route("/api/v1/namespaces/team/pods/{name}", delete(remove))
        .with_state(world.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let client = kube::Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
    let cluster = Cluster {
        client,
        namespace: "team".into(),
        given: None,
    };
    (world, cluster)
}

fn order(images: &[&str], limits: Limits) -> PrepullRequest {
    PrepullRequest {
        images: images.iter().map(|image| (*image).to_owned()).collect(),
        selector: Some("pool=cpu".into()),
        limits,
        pull_secrets: Vec::new(),
        overlay: OverlaySpec::default(),
        look: Duration::from_millis(10),
    }
}

const LIMITS: Limits = Limits {
    parallel: 2,
    retries: 0,
    deadline: Duration::from_secs(60),
};

#[tokio::test]
async fn every_linux_node_pulls_every_image_and_no_pod_is_left() {
    let (world, cluster) = started(0).await;
    let images = ["good:1", "good:2", "bad:1", "good:3", "good:4"];
    let pulls = pulled(&cluster, &order(&images, LIMITS)).await;
    let world = world.lock().unwrap();
    assert_eq!((world.pods.len(), world.made.len(), world.most_on_a_node), (0, 10, 2));
    assert!(
        world.made.iter().all(|name| name.starts_with("prepull-ab-")),
        "{:?}",
        world.made
    );
    assert_eq!(world.selectors, ["pool=cpu"]);
    let failed = |pull: &&Pull| matches!(&pull.state, State::Failed { attempts: 1, message } if message == "not found");
    let failed: Vec<_> = pulls
        .iter()
        .filter(failed)
        .map(|pull| (pull.node.as_str(), pull.image.as_str()))
        .collect();
    assert_eq!(failed, [("n1", "bad:1"), ("n2", "bad:1")]);
    assert_eq!(pulls.iter().filter(|pull| pull.state == State::Pulled).count(), 8);
}

#[tokio::test]
async fn a_pull_that_fails_is_tried_again_with_a_new_pod() {
    let (world, cluster) = started(0).await;
    let limits = Limits { retries: 1, ..LIMITS };
    let pulls = pulled(&cluster, &order(&["bad:1"], limits)).await;
    assert!(matches!(pulls[0].state, State::Failed { attempts: 2, .. }), "{pulls:?}");
    let made = &world.lock().unwrap().made;
    assert_eq!(made.len(), 4);
    assert!(made.contains(&"prepull-ab-0-2".to_owned()), "{made:?}");
}

#[tokio::test]
async fn a_deadline_ends_pulls_that_a_full_quota_holds_up() {
    let (world, cluster) = started(u32::MAX).await;
    let limits = Limits {
        deadline: Duration::from_millis(100),
        ..LIMITS
    };
    let pulls = pulled(&cluster, &order(&["good:1"], limits)).await;
    assert!(
        pulls
            .iter()
            .all(|pull| matches!(pull.state, State::Failed { attempts: 0, .. })),
        "{pulls:?}"
    );
    assert!(world.lock().unwrap().made.is_empty());
}

#[tokio::test]
async fn a_deletion_that_fails_for_now_ends_no_call_and_is_repeated() {
    let (world, cluster) = started(0).await;
    // Four during the work, one for each pod, and one at the end.
    world.lock().unwrap().refuses_to_delete = vec![500; 5];
    let pulls = pulled(&cluster, &order(&["good:1", "bad:1"], LIMITS)).await;
    let is_pulled = |pull: &&Pull| pull.state == State::Pulled;
    assert_eq!(pulls.iter().filter(is_pulled).count(), 2, "{pulls:?}");
    let world = world.lock().unwrap();
    assert!(world.refuses_to_delete.is_empty());
    assert!(world.pods.is_empty(), "{:?}", world.pods);
}

#[tokio::test]
async fn a_call_that_may_not_delete_still_says_how_far_the_pulls_came() {
    let (world, cluster) = started(0).await;
    world.lock().unwrap().refuses_to_delete = vec![403; 100];
    let done = prepull(&cluster, "prepull-ab", &order(&["good:1"], LIMITS))
        .await
        .unwrap();
    assert!(
        matches!(done.ended, Err(Error::Forbidden { verb: "delete", .. })),
        "{:?}",
        done.ended
    );
    assert!(
        done.pulls.iter().any(|pull| pull.state == State::Pulled),
        "{:?}",
        done.pulls
    );
}

#[test]
fn a_list_of_images_has_comments_and_names_each_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("images.txt");
    std::fs::write(&file, "# of the run\ngood:1\n\n good:2 \ngood:1\n").unwrap();
    assert_eq!(read_images(&file).unwrap(), ["good:1", "good:2"]);
    let error = read_images(&dir.path().join("none")).unwrap_err().to_string();
    assert!(error.contains("one image a line"), "{error}");
}
