//! The gateway's process accepts callers with a token for it, and lets a driver use only leases of its own run.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use grpo_auth::{LocalIssuer, ServiceAccount};
use grpo_contracts::access::Service;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::played::sandboxes::Sandboxds;
use crate::played::{SEED, Server};

const PATIENCE: Duration = Duration::from_secs(30);

struct Gateway {
    process: Child,
    url: String,
    http: reqwest::Client,
    issuer: LocalIssuer,
    folder: tempfile::TempDir,
    _server: Server,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free_port() -> u16 {
    grpo_free_port::free_port().unwrap()
}

fn kubeconfig(folder: &Path, server: &Server) {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": {"server": server.url}}],
        "users": [{"name": "it", "user": {}}],
    });
    std::fs::write(folder.join("kubeconfig"), config.to_string()).unwrap();
}

impl Gateway {
    /// Starts the gateway for callers of these accounts, and waits until it serves.
    async fn start(allowed: &[&str]) -> Self {
        let server = Server::serve(Arc::new(Sandboxds::default()), 2).await;
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let issuer = LocalIssuer::new().unwrap();
        std::fs::write(at.join("pool.json"), r#"{"max": 8, "allowUnenforced": true}"#).unwrap();
        std::fs::write(at.join("seed"), SEED).unwrap();
        std::fs::write(at.join("issuer.json"), issuer.file()).unwrap();
        kubeconfig(at, &server);
        let port = free_port();
        let process = Command::new(env!("CARGO_BIN_EXE_grpo-gateway"))
            .args([
                "--pool=p",
                "--namespace=n",
                "--pool-uid=u",
                "--sandboxd-image=s:1",
                "--ledger=ledger-0",
            ])
            .arg("--pool-file")
            .arg(at.join("pool.json"))
            .arg("--key-file")
            .arg(at.join("seed"))
            .arg("--issuer-file")
            .arg(at.join("issuer.json"))
            .arg(format!("--listen=127.0.0.1:{port}"))
            .args(allowed.iter().map(|account| format!("--allow={account}")))
            .arg("--kubeconfig")
            .arg(at.join("kubeconfig"))
            // Variables choose no server.
            .env("KUBECONFIG", "/nowhere")
            .env("KUBE_RS_DEBUG_OVERRIDE_URL", "http://127.0.0.1:9")
            .env("RUST_LOG", "error")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let gateway = Self {
            process,
            url: format!("http://127.0.0.1:{port}"),
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            issuer,
            folder,
            _server: server,
        };
        let ready = tokio::time::timeout(PATIENCE, async {
            while gateway.ask(Method::GET, "/readyz", None, &Value::Null).await.0 != 200 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        ready.await.unwrap();
        gateway
    }

    fn token(&self, namespace: &str, account: &str) -> String {
        let account = ServiceAccount::new(namespace, account);
        self.issuer.token(&account, Service::Gateway).unwrap()
    }

    /// Status and body; 0 while nothing listens.
    async fn ask(&self, method: Method, path: &str, token: Option<&str>, body: &Value) -> (u16, Value) {
        let mut request = self.http.request(method, format!("{}{path}", self.url));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        if !body.is_null() {
            request = request.json(body);
        }
        let Ok(answer) = request.send().await else {
            return (0, Value::Null);
        };
        let status = answer.status().as_u16();
        (
            status,
            serde_json::from_str(&answer.text().await.unwrap()).unwrap_or_default(),
        )
    }
}

fn lease(id: &str, run: &str) -> Value {
    json!({"id": id, "run": run, "image": "task:1", "ttlSeconds": 60, "waitSeconds": 20, "priority": "Agent"})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_but_probes_metrics_and_the_description_is_answered_without_a_valid_token() {
    let gateway = Gateway::start(&["n/demo-driver"]).await;
    let driver = ServiceAccount::new("n", "demo-driver");
    let until = |audience: &str, end| gateway.issuer.token_until(&driver, audience, end).unwrap();
    let (past, later) = (SystemTime::now() - PATIENCE, SystemTime::now() + PATIENCE);
    let forged = LocalIssuer::new().unwrap().token(&driver, Service::Gateway).unwrap();
    let cases = [
        (None, 401, "Unauthenticated"),
        (Some(forged), 401, "Unauthenticated"),
        (Some(until("trainer.grpo.dev", later)), 401, "Unauthenticated"),
        (Some(until("gateway.grpo.dev", past)), 401, "Unauthenticated"),
        (Some(gateway.token("n", "other-driver")), 403, "Forbidden"),
        (Some(gateway.token("m", "demo-driver")), 403, "Forbidden"),
    ];
    for (token, status, code) in cases {
        for (method, path, body) in [
            (Method::POST, "/v1/leases", lease("l", "demo")),
            (Method::PUT, "/v1/demand", json!({"run": "demo", "images": []})),
            (Method::GET, "/v1/pool", Value::Null),
            (
                Method::POST,
                "/v1/leases/l/exec",
                json!({"id": "e", "argv": ["true"], "timeoutSeconds": 1}),
            ),
            (Method::POST, "/compat/pool/allocate", json!({"image": "task:1"})),
            (Method::GET, "/nothing", Value::Null),
        ] {
            let (found, answer) = gateway.ask(method, path, token.as_deref(), &body).await;
            assert_eq!(
                (found, answer["code"].as_str()),
                (status, Some(code)),
                "{path}: {answer}"
            );
            assert_eq!(answer["fault"], "Client");
        }
    }
    for path in ["/healthz", "/readyz", "/metrics", "/openapi.json"] {
        assert_eq!(
            gateway.ask(Method::GET, path, None, &Value::Null).await.0,
            200,
            "{path}"
        );
    }
    // The issuer is gone; the fetched keys stay.
    std::fs::remove_file(gateway.folder.path().join("issuer.json")).unwrap();
    let token = gateway.token("n", "demo-driver");
    let (status, pool) = gateway.ask(Method::GET, "/v1/pool", Some(&token), &Value::Null).await;
    assert_eq!((status, &pool["max"]), (200, &json!(8)), "{pool}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_uses_the_leases_of_its_own_run_only() {
    let gateway = Gateway::start(&["n/*-driver", "n/p-client"]).await;
    let [demo, other] = ["demo-driver", "other-driver"].map(|account| gateway.token("n", account));
    let (status, answer) = gateway
        .ask(Method::POST, "/v1/leases", Some(&demo), &lease("l", "demo"))
        .await;
    assert_eq!(status, 200, "{answer}");
    let command = json!({"id": "e", "argv": ["true"], "timeoutSeconds": 5});
    let calls = [
        (Method::GET, "/v1/leases/l", Value::Null),
        (Method::GET, "/v1/leases/%6c", Value::Null),
        (Method::POST, "/v1/leases/l/renew", json!({"ttlSeconds": 60})),
        (Method::POST, "/v1/leases/l/exec", command),
        (Method::POST, "/v1/leases", lease("m", "demo")),
        (Method::POST, "/v1/leases", lease("l", "demo")),
        (Method::PUT, "/v1/demand", json!({"run": "demo", "images": []})),
        (Method::POST, "/compat/pool/allocate", json!({"image": "task:1"})),
        (Method::DELETE, "/v1/leases/l", Value::Null),
    ];
    for (method, path, body) in calls {
        let (status, answer) = gateway.ask(method.clone(), path, Some(&other), &body).await;
        assert_eq!(
            (status, &answer["code"]),
            (403, &json!("Forbidden")),
            "{method} {path}: {answer}"
        );
        if path.starts_with("/v1/") && path != "/v1/leases" {
            let status = gateway.ask(method, path, Some(&demo), &body).await.0;
            assert!((200..300).contains(&status), "{path}: {status}");
        }
    }
    // A used id does not give it another run's sandbox either.
    let (status, answer) = gateway
        .ask(Method::POST, "/v1/leases", Some(&demo), &lease("again", "demo"))
        .await;
    assert_eq!(status, 200, "{answer}");
    let (status, answer) = gateway
        .ask(Method::POST, "/v1/leases", Some(&other), &lease("again", "other"))
        .await;
    assert_eq!((status, &answer["code"]), (403, &json!("Forbidden")), "{answer}");
    let client = gateway.token("n", "p-client");
    let (status, answer) = gateway
        .ask(Method::POST, "/v1/leases", Some(&client), &lease("c", "any"))
        .await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_does_not_give_up_a_lease_for_which_another_run_waits() {
    let gateway = Gateway::start(&["n/*-driver"]).await;
    let [demo, other] = ["demo-driver", "other-driver"].map(|account| gateway.token("n", account));
    // Two of the eight sandboxes are kept for graders.
    for at in 0..6 {
        let body = lease(&format!("l{at}"), "demo");
        let (status, answer) = gateway.ask(Method::POST, "/v1/leases", Some(&demo), &body).await;
        assert_eq!(status, 200, "{answer}");
    }
    let mut waits = lease("w", "demo");
    waits["waitSeconds"] = json!(60);
    let waiting = gateway.ask(Method::POST, "/v1/leases", Some(&demo), &waits);
    let ((status, answer), ()) = tokio::join!(waiting, async {
        // Until it waits, there is no lease of this name.
        let refused = async {
            while gateway
                .ask(Method::DELETE, "/v1/leases/w", Some(&other), &Value::Null)
                .await
                .0
                != 403
            {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, refused).await.unwrap();
        let (status, answer) = gateway
            .ask(Method::DELETE, "/v1/leases/l0", Some(&demo), &Value::Null)
            .await;
        assert!((200..300).contains(&status), "{answer}");
    });
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_of_one_name_in_two_namespaces_that_a_pool_lets_in_have_leases_of_their_own() {
    let gateway = Gateway::start(&["n/*-driver", "m/*-driver"]).await;
    let [here, there] = ["n", "m"].map(|namespace| gateway.token(namespace, "demo-driver"));
    for (id, token) in [("a", &here), ("b", &there)] {
        let (status, answer) = gateway
            .ask(Method::POST, "/v1/leases", Some(token), &lease(id, "demo"))
            .await;
        assert_eq!(status, 200, "{answer}");
    }
    for (id, own, other) in [("a", &here, &there), ("b", &there, &here)] {
        let path = format!("/v1/leases/{id}");
        assert_eq!(gateway.ask(Method::GET, &path, Some(own), &Value::Null).await.0, 200);
        assert_eq!(gateway.ask(Method::GET, &path, Some(other), &Value::Null).await.0, 403);
        let taken = gateway
            .ask(Method::POST, "/v1/leases", Some(other), &lease(id, "demo"))
            .await;
        assert_eq!(taken.0, 403, "{}", taken.1);
    }
    let demand = json!({"run": "demo", "images": []});
    assert_eq!(
        gateway.ask(Method::PUT, "/v1/demand", Some(&there), &demand).await.0,
        204
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_another_pools_gateway_has_received_is_of_no_use_here() {
    let gateway = Gateway::start(&["m/demo-driver"]).await;
    let driver = ServiceAccount::new("m", "demo-driver");
    let until = SystemTime::now() + PATIENCE;
    for (audience, wanted) in [
        ("p.n.gateway.grpo.dev", 200),
        ("gateway.grpo.dev", 200),
        ("p.m.gateway.grpo.dev", 401),
        ("other.n.gateway.grpo.dev", 401),
    ] {
        let token = gateway.issuer.token_until(&driver, audience, until).unwrap();
        let (status, answer) = gateway.ask(Method::GET, "/v1/pool", Some(&token), &Value::Null).await;
        assert_eq!(status, wanted, "{audience}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_relays_to_its_own_service_only_and_the_pools_client_to_any() {
    let gateway = Gateway::start(&["n/*-driver", "m/*-driver", "n/p-client"]).await;
    let tokens = [("n", "demo-driver"), ("m", "demo-driver"), ("n", "p-client")];
    let [here, there, client] = tokens.map(|(namespace, account)| gateway.token(namespace, account));
    for (id, token) in [("here", &here), ("there", &there)] {
        let (status, answer) = gateway
            .ask(Method::POST, "/v1/leases", Some(token), &lease(id, "demo"))
            .await;
        assert_eq!(status, 200, "{answer}");
    }
    let cases = [
        ("here", &here, "http://demo-driver.n.svc:8070/sessions/x", 204),
        ("here", &here, "http://demo-driver.m.svc:8070/sessions/x", 403),
        ("here", &here, "http://demo-driver.n.svc/", 403),
        ("here", &here, "http://other-driver.n.svc:8070/", 403),
        ("here", &here, "http://10.0.0.1:443/", 403),
        ("there", &there, "http://demo-driver.m.svc:8070/", 204),
        ("there", &there, "http://demo-driver.n.svc:8070/", 403),
        ("here", &client, "http://models.n.svc:9000/v1", 204),
    ];
    for (id, token, to, wanted) in cases {
        let body = json!({"port": free_port(), "to": to});
        let path = format!("/v1/leases/{id}/relay");
        let (status, answer) = gateway.ask(Method::PUT, &path, Some(token), &body).await;
        assert_eq!(status, wanted, "{to}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_of_names_and_numbers_are_small_and_demands_are_bounded() {
    let gateway = Gateway::start(&["n/p-client"]).await;
    let client = gateway.token("n", "p-client");
    let address = gateway.url.strip_prefix("http://").unwrap();
    let mut socket = TcpStream::connect(address).await.unwrap();
    // The body is announced and never sent.
    let head = format!(
        "POST /v1/leases HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {client}\r\ncontent-length: 40000\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    let read = tokio::time::timeout(PATIENCE, socket.read_exact(&mut answer));
    read.await.unwrap().unwrap();
    assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 413");

    let wants = |run: &str, image: &str| json!({"run": run, "images": [{"image": image, "count": 0}]});
    let ask = async |body: Value| gateway.ask(Method::PUT, "/v1/demand", Some(&client), &body).await;
    assert_eq!(ask(wants("run", &"x".repeat(600))).await.0, 400);
    for nth in 0..grpo_gateway::index::MAX_DEMANDS {
        assert_eq!(ask(wants(&format!("run-{nth}"), "task:1")).await.0, 204);
    }
    let (status, answer) = ask(wants("one-more", "task:1")).await;
    assert_eq!(
        (status, answer["code"].as_str()),
        (503, Some("Unavailable")),
        "{answer}"
    );
    // A run that is remembered may change its demand, and one that has ended makes a place.
    assert_eq!(ask(wants("run-0", "task:2")).await.0, 204);
    assert_eq!(ask(json!({"run": "run-1", "images": []})).await.0, 204);
    assert_eq!(ask(wants("one-more", "task:1")).await.0, 204);
}
