//! The gateway: leases, commands and files.

use super::*;
use tokio::io::AsyncWriteExt as _;

pub(super) fn router(gateway: Arc<Gateway>) -> Router {
    Router::new()
        .route("/v1/leases", post(lease))
        .route("/v1/leases/{id}", get(get_lease).delete(release))
        .route("/v1/leases/{id}/exec", post(exec))
        .route("/v1/leases/{id}/renew", post(get_lease))
        .route("/v1/leases/{id}/files", put(put_file).get(get_file))
        .route("/v1/demand", put(demand))
        .route(
            "/v1/pool",
            get(|| async {
                Json(sandbox::PoolState {
                    max: 4,
                    ..Default::default()
                })
            }),
        )
        .route("/v1/pool/package-index", get(package_index))
        .merge(fake_sessions::router())
        .with_state(gateway)
}

async fn package_index(State(gateway): State<Arc<Gateway>>) -> Response {
    let mut state = gateway.state.lock().unwrap();
    let is_away = state.no_packages_for > 0;
    state.no_packages_for = state.no_packages_for.saturating_sub(1);
    state.packages_asked += 1;
    Json(sandbox::PackageIndexState {
        url: Some("http://pypi/simple".into()),
        unreachable: is_away.then(|| "no connection to 10.0.0.1:80".into()),
    })
    .into_response()
}

pub fn lost(cause: sandbox::SandboxCause) -> InjectedFault {
    (StatusCode::GONE, sandbox::ErrorBody::lost("l", cause))
}

pub(super) fn refused(code: sandbox::ErrorCode, fault: sandbox::FaultOrigin) -> Response {
    let body = sandbox::ErrorBody::new(code, fault, format!("{code:?}"));
    (StatusCode::from_u16(code.status()).unwrap(), Json(body)).into_response()
}

impl Gateway {
    fn away(&self) -> bool {
        let mut state = self.state.lock().unwrap();
        let away = state.away_for > 0;
        state.away_for = state.away_for.saturating_sub(1);
        away
    }

    /// The next failure of this command, if one is due.
    fn fails(&self, id: &str) -> Option<sandbox::ExecResult> {
        let mut state = self.state.lock().unwrap();
        let due = state.failures.iter().position(|failure| failure.id == id)?;
        Some(state.failures.remove(due))
    }

    pub(super) fn translate(&self, lease: &str, text: &str) -> String {
        let state = self.state.lock().unwrap();
        let dir = state.leases[lease].2.display().to_string();
        text.replace("/testbed", &format!("{dir}/testbed"))
            .replace("/tmp/grpo", &format!("{dir}/tmp/grpo"))
    }
}

async fn lease(State(gateway): State<Arc<Gateway>>, Json(request): Json<sandbox::LeaseRequest>) -> Response {
    if gateway.away() {
        return refused(sandbox::ErrorCode::Unavailable, sandbox::FaultOrigin::Infrastructure);
    }
    let mut state = gateway.state.lock().unwrap();
    if let Some((lease, ..)) = state.leases.get(&request.id) {
        return Json(lease.clone()).into_response();
    }
    if state.no_image_for > 0 {
        state.no_image_for -= 1;
        return refused(
            sandbox::ErrorCode::ImageUnavailable,
            sandbox::FaultOrigin::Infrastructure,
        );
    }
    state.epoch += 1;
    let lease = sandbox::Lease {
        id: request.id.clone(),
        epoch: state.epoch,
        sandbox: format!("pod-{}", state.epoch),
        image: request.image,
        node: "n".into(),
        expires_at: i64::MAX,
    };
    let dir = gateway.dir.path().join(format!("lease-{}", state.epoch));
    std::fs::create_dir(&dir).unwrap();
    sh(&dir, "cp -a ../testbed .; mkdir -p tmp/grpo");
    state.leases.insert(request.id, (lease.clone(), request.priority, dir));
    state.most_at_once = state.most_at_once.max(state.leases.len());
    let agents = state
        .leases
        .values()
        .filter(|(_, priority, _)| *priority == sandbox::Priority::Agent);
    state.most_agents_at_once = agents.count().max(state.most_agents_at_once);
    Json(lease).into_response()
}

async fn get_lease(State(gateway): State<Arc<Gateway>>, Path(id): Path<String>) -> Response {
    match gateway.state.lock().unwrap().leases.get(&id) {
        Some((lease, ..)) => Json(lease.clone()).into_response(),
        None => refused(sandbox::ErrorCode::NoSuchLease, sandbox::FaultOrigin::Client),
    }
}

async fn release(State(gateway): State<Arc<Gateway>>, Path(id): Path<String>) -> StatusCode {
    let mut state = gateway.state.lock().unwrap();
    state.leases.remove(&id);
    state.released.push(id);
    StatusCode::NO_CONTENT
}

async fn exec(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<String>,
    Json(request): Json<sandbox::ExecRequest>,
) -> Response {
    if gateway.away() {
        return refused(
            sandbox::ErrorCode::SandboxUnreachable,
            sandbox::FaultOrigin::Infrastructure,
        );
    }
    let key = (id.clone(), request.id.clone());
    {
        let mut state = gateway.state.lock().unwrap();
        let Some((lease, priority, _)) = state.leases.get(&id).cloned() else {
            return refused(sandbox::ErrorCode::NoSuchLease, sandbox::FaultOrigin::Client);
        };
        let hooked = gateway.hook.lock().unwrap();
        let fault = (!state.results.contains_key(&key))
            .then(|| hooked.as_ref().and_then(|hook| hook(&lease, priority, &request)))
            .flatten();
        if let Some((status, body)) = fault {
            if status == StatusCode::GONE {
                state.leases.remove(&id);
            }
            return (status, Json(body)).into_response();
        }
    }
    // The command continues after its caller is gone. A second call with the same id waits for the same result.
    let cell = gateway
        .state
        .lock()
        .unwrap()
        .results
        .entry(key.clone())
        .or_default()
        .clone();
    let runs_on = gateway.clone();
    let running = tokio::spawn(async move {
        let gateway = runs_on;
        let result = cell.get_or_init(|| async {
            {
                let mut state = gateway.state.lock().unwrap();
                *state.ran.entry(key).or_default() += 1;
                state.evaluations += u32::from(request.id == "eval");
            }
            run_command(&gateway, &id, &request).await
        });
        result.await.clone()
    });
    let result = running.await.unwrap();
    let mut away = gateway.relays.away.subscribe();
    away.wait_for(|away| !away).await.unwrap();
    Json(result).into_response()
}

async fn run_command(gateway: &Gateway, lease: &str, request: &sandbox::ExecRequest) -> sandbox::ExecResult {
    if let Some(failure) = gateway.fails(&request.id) {
        return failure;
    }
    let seen = |text: &str| gateway.translate(lease, &gateway.relays.port_of(lease, text));
    let argv: Vec<String> = request.argv.iter().map(|part| seen(part)).collect();
    let cwd = gateway.translate(lease, request.cwd.as_deref().unwrap_or("/testbed"));
    let mut command = tokio::process::Command::new("/bin/bash");
    if let Some(programs) = &gateway.state.lock().unwrap().programs {
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", programs.display()));
    }
    // A sandbox lacks the variables by which pytest detects CI and prints more.
    command.env_remove("CI").env_remove("BUILD_NUMBER");
    let activation = request.activate.as_deref().unwrap_or(":");
    // Interleaved as written, like the real one.
    command
        .args(["-c", &format!("{activation} || exit 126; exec \"$@\""), "activated"])
        .args(&argv)
        .current_dir(cwd)
        .envs(request.env.iter().map(|(name, value)| (name, seen(value))))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true);
    let typed = request.stdin.clone().unwrap_or_default();
    let ran = async move {
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let fed = async move { stdin.write_all(typed.as_bytes()).await };
        let (_, out) = tokio::join!(fed, child.wait_with_output());
        out
    };
    let began = std::time::Instant::now();
    let killed = gateway.relays.killed(lease, &request.id);
    let ended = tokio::select! {
        ended = tokio::time::timeout(Duration::from_secs(request.timeout_seconds), ran) => Some(ended),
        () = killed.notified() => None,
    };
    let millis = began.elapsed().as_millis() as u64;
    let by_request = ended.is_none();
    let kept = request.max_output_bytes.unwrap_or(sandbox::DEFAULT_OUTPUT_BYTES) as usize;
    let (exit_code, output, timed_out) = match ended {
        None => (None, String::new(), false),
        Some(Ok(out)) => {
            let out = out.unwrap();
            let mut text = [out.stderr, out.stdout].concat();
            if text.len() > kept {
                // Head and tail, like the real one.
                text.drain(kept / 2..text.len() - kept / 2);
            }
            (out.status.code(), String::from_utf8_lossy(&text).into_owned(), false)
        }
        Some(Err(_)) => (None, String::new(), true),
    };
    let killed = match by_request {
        true => Some(sandbox::Killed::Request),
        false => timed_out.then_some(sandbox::Killed::Timeout),
    };
    sandbox::ExecResult {
        id: request.id.clone(),
        exit_code,
        signal: None,
        timed_out,
        output,
        omitted_bytes: 0,
        duration_millis: millis,
        killed,
    }
}

async fn put_file(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<String>,
    Query(query): Query<HashMap<String, String>>,
    body: Bytes,
) -> StatusCode {
    let path = PathBuf::from(gateway.translate(&id, &query["path"]));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    // Scripts name the sandbox's paths; patches stay unchanged.
    let bytes = match path.extension().is_some_and(|e| e == "sh") {
        true => gateway.translate(&id, std::str::from_utf8(&body).unwrap()).into_bytes(),
        false => body.to_vec(),
    };
    std::fs::write(path, bytes).unwrap();
    StatusCode::NO_CONTENT
}

async fn get_file(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    match std::fs::read(gateway.translate(&id, &query["path"])) {
        Ok(bytes) => bytes.into_response(),
        Err(_) => refused(sandbox::ErrorCode::NoSuchFile, sandbox::FaultOrigin::Client),
    }
}

async fn demand(State(gateway): State<Arc<Gateway>>, Json(_): Json<sandbox::Demand>) -> StatusCode {
    gateway.state.lock().unwrap().demands += 1;
    StatusCode::NO_CONTENT
}
