//! One sandboxd, with a client that calls it as the gateway does.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use grpo_sandbox_protocol::{
    ExecRequest, ExecResult, KEY_ENV, RELAY_PROTOCOL, Signed, Signer,
    signature::{EPOCH_HEADER, LEASE_HEADER, SIGNATURE_HEADER, TIME_HEADER},
};
use reqwest::{Method, RequestBuilder, Response};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

pub struct Sandbox {
    pub process: Child,
    pub address: String,
    signer: Signer,
    pub http: reqwest::Client,
    pub folder: tempfile::TempDir,
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Sandbox {
    /// Tests call from the same host.
    pub fn start() -> Self {
        Self::started_with(&["--allow-local"])
    }

    pub fn started_with(arguments: &[&str]) -> Self {
        let signer = Signer::from_seed(&[7; 32]);
        // A shell's background jobs ignore SIGINT, and so do their descendants, such as tests. Containers do not.
        let mut process = Command::new("env")
            .args(["--default-signal", env!("CARGO_BIN_EXE_sandboxd")])
            .args(arguments)
            .env(KEY_ENV, signer.public_key())
            .env("GRPO_SANDBOXD_LISTEN", "127.0.0.1:0")
            .env("FROM_THE_IMAGE", "yes")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        Self {
            process,
            address,
            signer,
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub async fn bound() -> Self {
        Self::bound_for(60).await
    }

    pub async fn bound_for(seconds: u64) -> Self {
        let sandbox = Self::start();
        assert_eq!(sandbox.bind("l1", 1, seconds).await.status(), 204);
        sandbox
    }

    pub async fn bind(&self, lease: &str, epoch: u64, ttl: u64) -> Response {
        let body = json!({"lease": lease, "epoch": epoch, "ttlSeconds": ttl}).to_string();
        self.send_as(lease, epoch, Method::POST, "/bind", body.into()).await
    }

    pub async fn send(&self, method: Method, target: &str, body: Vec<u8>) -> Response {
        self.send_as("l1", 1, method, target, body).await
    }

    /// A call that upgrades its connection.
    pub async fn upgrade(&self, target: &str, lease: &str) -> Response {
        let request = self.request_as(lease, 1, Method::POST, target, &[]);
        let request = request
            .header("connection", "upgrade")
            .header("upgrade", RELAY_PROTOCOL);
        request.send().await.unwrap()
    }

    pub async fn send_as(&self, lease: &str, epoch: u64, method: Method, target: &str, body: Vec<u8>) -> Response {
        let request = self.request_as(lease, epoch, method, target, &body);
        request.body(body).send().await.unwrap()
    }

    fn request_as(&self, lease: &str, epoch: u64, method: Method, target: &str, body: &[u8]) -> RequestBuilder {
        let unix_millis = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
        let signed = Signed {
            method: method.as_str(),
            target,
            lease,
            epoch,
            unix_millis,
            body,
        };
        let signature = self.signer.sign(&signed);
        let request = self.http.request(method, format!("http://{}{target}", self.address));
        request
            .header(SIGNATURE_HEADER, signature)
            .header(LEASE_HEADER, lease)
            .header(EPOCH_HEADER, epoch.to_string())
            .header(TIME_HEADER, unix_millis.to_string())
    }

    /// Calls a sandboxd that may end meanwhile.
    pub async fn try_exec(&self, request: &ExecRequest) -> reqwest::Result<Response> {
        let body = serde_json::to_vec(request).unwrap();
        let asked = self.request_as("l1", 1, Method::POST, "/exec", &body);
        asked.body(body).send().await
    }

    pub async fn exec(&self, request: &ExecRequest) -> ExecResult {
        let body = serde_json::to_vec(request).unwrap();
        let answer = self.send(Method::POST, "/exec", body).await;
        assert_eq!(answer.status(), 200);
        answer.json().await.unwrap()
    }

    pub async fn shell(&self, id: &str, script: &str) -> ExecResult {
        self.exec(&shell(id, script)).await
    }

    /// A call with JSON in both directions.
    pub async fn call<T: DeserializeOwned>(&self, target: &str, body: &impl Serialize) -> T {
        let answer = self.send(Method::POST, target, serde_json::to_vec(body).unwrap()).await;
        read(target, answer).await
    }

    pub async fn look<T: DeserializeOwned>(&self, target: &str) -> T {
        read(target, self.send(Method::GET, target, Vec::new()).await).await
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }
}

async fn read<T: DeserializeOwned>(target: &str, answer: Response) -> T {
    let status = answer.status();
    let text = answer.text().await.unwrap();
    assert_eq!(status, 200, "{target}: {text}");
    serde_json::from_str(&text).unwrap()
}

pub fn shell(id: &str, script: &str) -> ExecRequest {
    ExecRequest {
        id: id.into(),
        argv: ["sh", "-c", script].map(str::to_owned).into(),
        cwd: None,
        env: Default::default(),
        user: None,
        activate: None,
        stdin: None,
        timeout_seconds: 30,
        max_output_bytes: None,
    }
}

/// Waits until a command has written to this file.
pub async fn until_written(path: &str) {
    let written = async {
        while std::fs::metadata(path).map_or(true, |about| about.len() == 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), written).await;
    assert!(waited.is_ok(), "no command has written to {path}");
}

pub fn is_alive(pid: &str) -> bool {
    // The name of a program may be no text.
    let stat = std::fs::read(Path::new("/proc").join(pid.trim()).join("stat"));
    let stat = stat.map(|stat| String::from_utf8_lossy(&stat).into_owned());
    stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap().trim_start().starts_with('Z'))
}
