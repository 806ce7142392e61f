//! Graders reach the pool's package index, and agents never have a pod that does.

use std::sync::Arc;
use std::time::Duration;

use grpo_sandbox_protocol::{Lease, Priority};
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::played::sandboxes::Sandboxds;
use crate::played::{Gateway, Server, bounds};

const MAX: usize = 2;

/// A pool with an index, and its gateway.
struct Pool {
    server: Server,
    gateway: Gateway,
    url: String,
    http: reqwest::Client,
    spec: String,
}

impl Pool {
    async fn begin(index: &str) -> Self {
        let server = Server::serve(Arc::new(Sandboxds::default()), MAX).await;
        let spec = format!(
            "{{max: {MAX}, allowUnenforced: true, reset: ContainerRestart, packageIndex: {{url: '{index}', cidr: 127.0.0.1/32}}}}"
        );
        let mut gateway = Gateway::begin(&server, bounds(MAX), &spec).await;
        let url = format!("http://{}", gateway.listen().await);
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        Self {
            server,
            gateway,
            url,
            http,
            spec,
        }
    }

    /// Replaces this gateway by another.
    async fn restart(self) -> Self {
        self.gateway.end().await;
        let mut gateway = Gateway::begin(&self.server, bounds(MAX), &self.spec).await;
        let url = format!("http://{}", gateway.listen().await);
        Self { gateway, url, ..self }
    }

    async fn ask(&self, id: &str, priority: Priority) -> Response {
        let request = json!({
            "id": id, "run": "r", "image": "x", "ttlSeconds": 60, "waitSeconds": 60, "priority": priority,
        });
        let url = format!("{}/v1/leases", self.url);
        self.http.post(url).json(&request).send().await.unwrap()
    }

    async fn lease(&self, id: &str, priority: Priority) -> Lease {
        let answer = self.ask(id, priority).await;
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        assert_eq!(status, StatusCode::OK, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    async fn release(&self, id: &str) {
        let url = format!("{}/v1/leases/{id}", self.url);
        let answer = self.http.delete(url).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::NO_CONTENT);
    }

    async fn index_of(&self, id: &str) -> String {
        let request = json!({"id": "e", "argv": ["sh", "-c", "printf %s \"$PIP_INDEX_URL$PIP_TRUSTED_HOST\""], "timeoutSeconds": 10});
        let url = format!("{}/v1/leases/{id}/exec", self.url);
        let answer: Value = self
            .http
            .post(url)
            .json(&request)
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap();
        answer["output"].as_str().unwrap().to_owned()
    }

    async fn packages_now(&self) -> Value {
        let url = format!("{}/v1/pool/package-index", self.url);
        self.http.get(url).send().await.unwrap().json().await.unwrap()
    }

    /// `None` if there is no such pod.
    fn has_label(&self, pod: &str) -> Option<bool> {
        let pods = self.server.pods.lock().unwrap();
        pods.get(pod)
            .map(|pod| pod["metadata"]["labels"]["grpo.dev/grader"] == "true")
    }
}

/// An index that accepts connections, and its URL. When it is dropped, no other test gets its port.
async fn index() -> (TcpListener, String) {
    let port = grpo_free_port::free_port().unwrap();
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    let url = format!("http://{}/simple", listener.local_addr().unwrap());
    (listener, url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_graders_are_let_out_and_their_pods_are_deleted_though_the_pool_resets() {
    let (_listener, url) = index().await;
    let pool = Pool::begin(&url).await;
    let agent = pool.lease("agent", Priority::Agent).await;
    assert_eq!(pool.has_label(&agent.sandbox), Some(false));
    assert_eq!(pool.index_of("agent").await, "");
    pool.release("agent").await;

    let grader = pool.lease("grader", Priority::Grader).await;
    assert_eq!(
        pool.has_label(&grader.sandbox),
        Some(true),
        "before the lease is answered"
    );
    assert_eq!(pool.index_of("grader").await, format!("{url}127.0.0.1"));
    pool.release("grader").await;
    assert_eq!(pool.has_label(&grader.sandbox), None, "deleted, not reset");
    let later = pool.lease("later", Priority::Agent).await;
    assert_ne!(later.sandbox, grader.sandbox);
    assert_eq!(pool.has_label(&later.sandbox), Some(false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_gateway_knows_graders_by_their_pods() {
    let (_listener, url) = index().await;
    let pool = Pool::begin(&url).await;
    let grader = pool.lease("grader", Priority::Grader).await;
    let pool = pool.restart().await;
    assert_eq!(pool.index_of("grader").await, format!("{url}127.0.0.1"));
    pool.release("grader").await;
    assert_eq!(pool.has_label(&grader.sandbox), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_that_does_not_answer_refuses_graders_as_a_fault_of_the_infrastructure_and_no_agents() {
    let (listener, url) = index().await;
    let pool = Pool::begin(&url).await;
    assert_eq!(pool.packages_now().await, json!({"url": url}));
    drop(listener);
    let now = pool.packages_now().await;
    assert!(now["unreachable"].as_str().unwrap().contains("127.0.0.1"), "{now}");
    let asked = pool.ask("grader", Priority::Grader);
    let agent = async {
        // Half of what a grader waits, and more.
        let within = Duration::from_secs(15);
        tokio::time::timeout(within, pool.lease("agent", Priority::Agent)).await
    };
    let (refused, agent) = tokio::join!(asked, agent);
    assert_eq!(
        pool.has_label(&agent.expect("agents do not wait for the index").sandbox),
        Some(false)
    );
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    let refused: Value = refused.json().await.unwrap();
    assert_eq!(
        (&refused["code"], &refused["fault"]),
        (&json!("PackageIndexUnreachable"), &json!("Infrastructure"))
    );
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains(&url) && message.contains("targetPort"), "{message}");
    let left = pool
        .http
        .get(format!("{}/v1/leases/grader", pool.url))
        .send()
        .await
        .unwrap();
    assert_eq!(left.status(), StatusCode::NOT_FOUND, "the lease is not kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_whose_labelling_fails_is_deleted_and_its_grader_refused() {
    let (_listener, url) = index().await;
    let pool = Pool::begin(&url).await;
    pool.server
        .keeps_labels
        .store(true, std::sync::atomic::Ordering::Relaxed);
    let refused: Value = pool.ask("grader", Priority::Grader).await.json().await.unwrap();
    assert_eq!(refused["code"], "PackageIndexUnreachable", "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("labelling"), "{refused}");
    let gone = async {
        while !pool.server.pods.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let gone = tokio::time::timeout(Duration::from_secs(60), gone).await;
    assert!(gone.is_ok(), "the pod may have the label all the same");
}
