use super::super::index::LOOK_AGAIN;
use super::super::viewed::Place;
use super::*;
use futures::StreamExt;
use grpo_records::{Event, JournalEntry, SCHEMA, Writer, fixture, paths};
use reqwest::header::{HOST, SET_COOKIE};
use serde_json::Value;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

struct World {
    dir: tempfile::TempDir,
    run: Arc<Viewed>,
    url: String,
    cookie: String,
    http: reqwest::Client,
}

async fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    fixture::write_store(dir.path());
    fixture::write_journal(dir.path());
    let run = Arc::new(Viewed::open(Place::Folder(dir.path().to_owned())).await.unwrap());
    run.catch_up().await.unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let at = listener.local_addr().unwrap();
    let shown = Arc::new(Shown {
        runs: vec![Arc::clone(&run)],
        token: "0123456789abcdef0123456789abcdef".to_owned(),
        at,
    });
    tokio::spawn(async move { axum::serve(listener, router(shown)).await });
    World {
        dir,
        run,
        url: format!("http://{at}"),
        cookie: format!("grpo-ui-{}=0123456789abcdef0123456789abcdef", at.port()),
        http: reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .unwrap(),
    }
}

impl World {
    async fn get(&self, path: &str) -> reqwest::Response {
        let request = self
            .http
            .get(format!("{}{path}", self.url))
            .header("cookie", &self.cookie);
        request.send().await.unwrap()
    }

    async fn json(&self, path: &str) -> Value {
        let answer = self.get(path).await;
        assert_eq!(answer.status(), 200, "{path}");
        answer.json().await.unwrap()
    }
}

#[tokio::test]
async fn only_the_browser_with_the_token_sees_records() {
    let world = world().await;
    let get = |path: &str| world.http.get(format!("{}{path}", world.url));
    for path in ["/", "/app.js", "/api/runs", "/api/0/run", "/events", "/?token=0123"] {
        assert_eq!(get(path).send().await.unwrap().status(), 401, "{path}");
    }
    let entered = get("/?token=0123456789abcdef0123456789abcdef").send().await.unwrap();
    assert_eq!(entered.status(), 303);
    let cookie = entered.headers()[SET_COOKIE].to_str().unwrap().to_owned();
    assert!(cookie.starts_with(&world.cookie) && cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax"));
    assert_eq!(world.get("/").await.status(), 200);
}

#[tokio::test]
async fn a_page_under_another_name_of_this_machine_is_refused() {
    let world = world().await;
    let request = world.http.get(format!("{}/api/0/run", world.url));
    let answer = request
        .header(HOST, "evil.example")
        .header("cookie", &world.cookie)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 403);
}

#[tokio::test]
async fn every_answer_forbids_other_scripts_and_frames() {
    let world = world().await;
    for path in ["/", "/api/0/run", "/api/0/none"] {
        let answer = world.get(path).await;
        let policy = answer.headers()["content-security-policy"].to_str().unwrap();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self';"),
            "{path}: {policy}"
        );
        assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
    }
}

#[tokio::test]
async fn each_view_has_a_path() {
    let world = world().await;
    let scope = "rollouts/iter-000001";
    assert_eq!(world.json("/api/runs").await["runs"][0], "demo");
    assert_eq!(world.json("/api/0/run").await["sequence"], 14);
    assert_eq!(
        world.json(&format!("/api/0/scope/{scope}")).await["groups"][0]["instance"],
        "psf__requests-1"
    );
    assert_eq!(
        world.json(&format!("/api/0/group/{scope}/0")).await["samples"]
            .as_array()
            .unwrap()
            .len(),
        4
    );
    let episode = world.json(&format!("/api/0/episode/{}", fixture::RESOLVED)).await;
    assert_eq!(episode["episode"]["advantage"], 0.5);
    let tokens = world.json(&format!("/api/0/tokens/{}", fixture::RESOLVED)).await;
    assert_eq!(
        (tokens[1]["ids"][0].clone(), tokens[1]["hasText"].clone()),
        (11.into(), false.into())
    );
    assert_eq!(tokens[0]["trainer"]["clipped"], serde_json::json!([false, true]));
    assert_eq!(tokens[0]["trainer"]["logprobs"], serde_json::json!([-0.5, -0.125]));
    assert_eq!(tokens[1]["trainer"]["entropies"], serde_json::json!([0.5, 0.5]));
    let unresolved = fixture::RESOLVED.replace("__i0", "__i1");
    let tokens = world.json(&format!("/api/0/tokens/{unresolved}")).await;
    assert_eq!(
        (&tokens[0]["trainer"]["logprobs"], &tokens[0]["trainer"]["advantage"]),
        (&serde_json::json!([null, null]), &serde_json::Value::Null)
    );
    assert_eq!(
        world.json("/api/0/task/psf__requests-1").await["scopes"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[tokio::test]
async fn an_episode_and_a_scope_are_saved_in_the_formats_of_export() {
    let world = world().await;
    let scope = "rollouts/iter-000001";
    for (path, name, part) in [
        (
            format!("atif/{}", fixture::RESOLVED),
            "psf__requests-1__g0__i0.atif.json",
            "\"steps\"",
        ),
        (
            format!("mini-swe-agent/{}", fixture::RESOLVED),
            "psf__requests-1__g0__i0.traj.json",
            "\"messages\"",
        ),
        (
            format!("inspect/{scope}"),
            "rollouts-iter-000001.inspect.json",
            "\"samples\"",
        ),
        (
            format!("predictions/{scope}"),
            "rollouts-iter-000001.predictions.jsonl",
            "\"model_patch\"",
        ),
    ] {
        let answer = world.get(&format!("/api/0/export/{path}")).await;
        assert_eq!(answer.status(), 200, "{path}");
        assert_eq!(
            answer.headers()["content-disposition"],
            format!("attachment; filename=\"{name}\"").as_str()
        );
        let text = answer.text().await.unwrap();
        assert!(text.contains(part), "{path}: {text}");
    }
    let unfinished = fixture::RESOLVED.replace("__i0", "__i3");
    let answer = world.get(&format!("/api/0/export/atif/{unfinished}")).await;
    assert_eq!(
        (answer.status().as_u16(), answer.headers().get("content-disposition")),
        (404, None)
    );
    assert!(answer.text().await.unwrap().contains("wait until it is graded"));
}

#[tokio::test]
async fn a_log_of_a_scope_with_an_unreadable_episode_is_not_taken_for_a_whole_one() {
    let world = world().await;
    let unresolved = fixture::RESOLVED.replace("__i0", "__i1");
    std::fs::write(world.dir.path().join(paths::trajectory(&unresolved)), "{").unwrap();
    let address = format!("{}/api/0/export/inspect/rollouts/iter-000001", world.url);
    let request = world.http.get(address).header("cookie", &world.cookie);
    // The connection may end before the answer begins.
    let got = match request.send().await {
        Ok(answer) => answer.bytes().await,
        Err(error) => Err(error),
    };
    assert!(got.is_err(), "{got:?}");
}

#[tokio::test]
async fn views_of_a_scope_read_its_verdicts_once_until_the_run_changes() {
    let world = world().await;
    let episode = format!("/api/0/episode/{}", fixture::RESOLVED);
    world.json(&episode).await;
    // Every later reader of the scope fails.
    let unresolved = fixture::RESOLVED.replace("__i0", "__i1");
    std::fs::write(world.dir.path().join(paths::meta(&unresolved)), "{").unwrap();
    assert_eq!(world.json(&episode).await["episode"]["advantage"], 0.5);
    let group = world.json("/api/0/group/rollouts/iter-000001/0").await;
    assert_eq!(group["samples"].as_array().unwrap().len(), 4);
    // The table of a scope is always new.
    let table = world.get("/api/0/scope/rollouts/iter-000001").await;
    assert_eq!(table.status(), 502);
    write_entry(&world, 15, Event::DriverStarted { epoch: 3 });
    world.run.catch_up().await.unwrap();
    assert_eq!(world.get(&episode).await.status(), 502);
}

#[tokio::test]
async fn an_episode_that_has_ended_since_its_scope_was_read_is_shown_with_its_verdict() {
    let world = world().await;
    let path = fixture::RESOLVED.replace("__i0", "__i3");
    let episode = format!("/api/0/episode/{path}");
    assert_eq!(world.json(&episode).await["episode"]["outcome"], "Unfinished");
    let meta = world.dir.path().join(paths::meta(fixture::RESOLVED));
    let meta = std::fs::read_to_string(meta).unwrap();
    std::fs::write(world.dir.path().join(paths::meta(&path)), meta).unwrap();
    assert_eq!(world.json(&episode).await["episode"]["outcome"], "Resolved");
}

#[tokio::test]
async fn a_path_that_no_store_has_is_not_found() {
    let world = world().await;
    for path in [
        "/api/1/run",
        "/api/0/none",
        "/api/0/scope/rollouts",
        "/api/0/scope/..%2F..%2Fetc",
        "/api/0/episode/rollouts/iter-000001/..",
        "/api/0/episode/rollouts/iter-000001/missing__g0__i0",
        "/api/0/group/rollouts/iter-000001/77",
        "/api/0/log/rollouts/iter-000001/missing__g0__i0",
        "/api/0/export/atif/rollouts/iter-000001/missing__g0__i0",
        "/api/0/export/inspect/rollouts",
        "/api/0/export/none/rollouts/iter-000001",
    ] {
        let answer = world.get(path).await;
        assert_eq!(answer.status(), 404, "{path}");
        assert!(answer.json::<Value>().await.unwrap()["message"].is_string(), "{path}");
    }
}

#[tokio::test]
async fn a_log_is_sent_part_by_part() {
    let world = world().await;
    let log = "a line of the lög\n".repeat(20_000);
    std::fs::write(world.dir.path().join(paths::grade_log(fixture::RESOLVED)), &log).unwrap();
    let mut whole = String::new();
    loop {
        let part = world
            .json(&format!("/api/0/log/{}?from={}", fixture::RESOLVED, whole.len()))
            .await;
        whole += part["text"].as_str().unwrap();
        assert_eq!(part["to"], whole.len());
        if part["more"] == false {
            break;
        }
    }
    assert!(whole == log);
}

/// Waits for the answer that fits, and fails after a minute.
async fn until<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work).await.unwrap()
}

fn write_entry(world: &World, sequence: u64, event: Event) {
    let entry = JournalEntry {
        schema: SCHEMA,
        writer: Writer::driver(1),
        sequence,
        at: 2000,
        event,
    };
    let path = world.dir.path().join(paths::journal_entry(sequence));
    std::fs::write(path, serde_json::to_vec(&entry).unwrap()).unwrap();
}

#[tokio::test]
async fn each_stream_begins_with_the_state_and_announces_new_entries() {
    let world = world().await;
    let mut events = world.get("/events").await.bytes_stream();
    let first = until(events.next()).await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&first).contains("\"run\":0"));
    let run = Arc::clone(&world.run);
    let following = tokio::spawn(async move { run.follow().await });
    write_entry(&world, 15, Event::DriverStarted { epoch: 3 });
    let told = async {
        loop {
            events.next().await.unwrap().unwrap();
            if world.json("/api/0/run").await["drivers"] == 3 {
                break;
            }
        }
    };
    until(told).await;
    following.abort();
}

#[tokio::test]
async fn words_of_texts_names_and_outcomes_are_found_together() {
    let world = world().await;
    let run = Arc::clone(&world.run);
    let following = tokio::spawn(async move { run.follow().await });
    let read = async {
        loop {
            let found = world.json("/api/0/search?q=loop%20bugs").await;
            if found["read"] == found["ended"] {
                break found;
            }
            tokio::task::yield_now().await;
        }
    };
    assert_eq!(until(read).await["all"], 3);
    assert_eq!(world.json("/api/0/search?q=loop%20unresolved").await["all"], 1);
    assert_eq!(world.json("/api/0/search?q=loop%20iter-000001").await["all"], 2);
    assert_eq!(world.json("/api/0/search?q=loop%20nothing").await["all"], 0);
    following.abort();
}

#[tokio::test]
async fn metrics_that_could_not_be_read_are_read_later() {
    let world = world().await;
    let metrics = world.dir.path().join(paths::trainer_metrics(2));
    // It leads to itself: the file is there and cannot be read.
    std::os::unix::fs::symlink(&metrics, &metrics).unwrap();
    write_entry(&world, 15, Event::DriverStarted { epoch: 3 });
    assert!(world.run.catch_up().await.is_err());
    std::fs::remove_file(&metrics).unwrap();
    std::fs::write(&metrics, r#"{"step": 2, "loss": 0.125}"#).unwrap();
    world.run.catch_up().await.unwrap();
    let run = world.json("/api/0/run").await;
    let curves = run["curves"].as_array().unwrap();
    let loss = curves.iter().find(|curve| curve["name"] == "loss").unwrap();
    assert_eq!(loss["y"], serde_json::json!([0.25, 0.125]));
}

#[tokio::test]
async fn a_damaged_file_of_metrics_is_named_until_it_was_repaired() {
    let world = world().await;
    let file = |step: u32| world.dir.path().join(paths::trainer_metrics(step));
    std::fs::write(file(2), "{\"step\": ").unwrap();
    std::fs::write(file(3), r#"{"step": 3, "loss": 0.0625}"#).unwrap();
    write_entry(&world, 15, Event::DriverStarted { epoch: 3 });
    let now = Instant::now();
    world.run.catch_up_at(now).await.unwrap();
    std::fs::write(file(2), r#"{"step": 2, "loss": 0.125}"#).unwrap();
    write_entry(&world, 16, Event::DriverStarted { epoch: 4 });
    world.run.catch_up_at(now + LOOK_AGAIN / 2).await.unwrap();
    let run = world.json("/api/0/run").await;
    assert!(run["damaged"][0].as_str().unwrap().contains("000002.json"), "{run}");
    world.run.catch_up_at(now + LOOK_AGAIN).await.unwrap();
    let run = world.json("/api/0/run").await;
    assert_eq!(run["damaged"], serde_json::json!([]));
    let curves = run["curves"].as_array().unwrap();
    let loss = curves.iter().find(|curve| curve["name"] == "loss").unwrap();
    assert_eq!(loss["y"], serde_json::json!([0.25, 0.125, 0.0625]));
}

#[tokio::test]
async fn a_closed_run_answers_no_more() {
    let world = world().await;
    world.run.close().await.unwrap();
    let answer = world.get(&format!("/api/0/episode/{}", fixture::RESOLVED)).await;
    assert_eq!(answer.status(), 502);
    assert_eq!(answer.json::<Value>().await.unwrap()["message"], "the viewer has ended");
}
