use super::*;
use crate::trackers::tests::{Run, config, sent};
use crate::trackers::{Reader, advance};
use grpo_played_wandb::{ENTITY, KEY, PlayedRun, PlayedWandb};
use grpo_records::{Event, StepMetrics, paths};
use std::collections::BTreeMap;

/// A key's file beside the store of a run, and the server.
struct Scene {
    run: Run,
    server: PlayedWandb,
}

impl Scene {
    async fn new() -> Self {
        let run = Run::new().await;
        std::fs::write(run.folder.path().join("key"), format!("{KEY}\n")).unwrap();
        let server = PlayedWandb::start("127.0.0.1").await.unwrap();
        Self { run, server }
    }

    /// The tracker of another driver.
    fn tracker(&self) -> Live {
        self.tracker_of(json!({"project": "swe"}), Duration::ZERO)
    }

    fn tracker_of(&self, mut wanted: Value, every: Duration) -> Live {
        wanted["upload"] = json!({"apiKeySecretRef": {"name": "w", "key": "k"}, "url": self.server.url});
        let config = config(json!({"wandb": wanted}));
        let wanted = config.spec.trackers.clone().unwrap().wandb.unwrap();
        let upload = wanted.upload.clone().unwrap();
        Live::of(&wanted, &upload, &config).with(&self.run.folder.path().join("key"), every)
    }

    async fn send(&self, tracker: &mut Live) -> Result<(), TrackerError> {
        advance(tracker, &mut Reader::new(self.run.store.clone())).await
    }

    /// A step with metrics.
    async fn measured(&mut self, step: u32) {
        let metrics = StepMetrics {
            step,
            loss: -f64::from(step),
            ..StepMetrics::default()
        };
        let path = paths::trainer_metrics(step);
        self.run.store.create(&path, &metrics).await.unwrap();
        self.run.stepped(step, &format!("a-v{step}")).await;
    }

    fn there(&self) -> PlayedRun {
        self.server.run(ENTITY, "swe", "uid").unwrap()
    }

    /// Values of a curve by step, in the order of the rows.
    fn values(&self, curve: &str) -> Vec<(u64, f64)> {
        let rows = self.there().history();
        let of_row = |row: &Value| Some((row["step"].as_u64()?, row[curve].as_f64()?));
        rows.iter().filter_map(of_row).collect()
    }

    /// Fails unless each row came in its place, with one content.
    fn check(&self) {
        let there = self.there();
        assert_eq!(self.server.refused(), Vec::<String>::new());
        assert_eq!(self.server.unknown(), Vec::<String>::new());
        assert_eq!(
            (self.server.runs(), there.changed),
            (1, 0),
            "one run, and rows that stay"
        );
        for (row, number) in there.history().iter().zip(0..) {
            assert_eq!(row["_step"], json!(number));
        }
    }
}

const RATE: &str = "evaluation/heldout/resolved_rate";

#[tokio::test]
async fn each_row_is_there_once_after_an_outage_lost_answers_and_with_several_drivers() {
    let mut scene = Scene::new().await;
    scene.run.evaluated("a-v0", 1).await;
    scene.server.lose_one_of_each();
    sent(&mut scene.tracker(), &scene.run.store).await;
    assert_eq!(scene.there().state, "running");

    // The driver works while the server is away; then both end, and only the server comes back.
    let mut tracker = scene.tracker();
    scene.send(&mut tracker).await.unwrap();
    scene.server.set_away(true);
    scene.run.stepped(1, "a-v1").await;
    scene.run.evaluated("a-v1", 3).await;
    for _ in 0..3 {
        let error = scene.send(&mut tracker).await.unwrap_err().to_string();
        assert!(error.contains("the server answers 503"), "{error}");
    }
    scene.server.set_away(false);
    scene.run.evaluated("a-v1", 4).await;
    scene.run.finished(true).await;
    scene.server.lose_one_of_each();
    sent(&mut scene.tracker(), &scene.run.store).await;

    scene.check();
    assert_eq!(scene.values(RATE), [(0, 0.25), (1, 0.75), (1, 1.0)]);
    let there = scene.there();
    assert_eq!(
        there.repeated, 0,
        "after a lost answer the server is asked how many rows it has"
    );
    assert_eq!(there.summary[RATE], json!(1.0));
    assert_eq!(there.summary["_step"], json!(2));
    assert_eq!((there.state, there.exit_code), ("finished", Some(0)));
    assert_eq!(there.display_name, "r");
    assert_eq!(there.config["mode"], json!({"value": "Train"}));
    assert!(there.config.get("driver").is_none(), "its variables may be secret");
}

#[tokio::test]
async fn values_of_steps_are_those_of_the_metrics_and_their_axis_is_the_step() {
    let mut scene = Scene::new().await;
    let metrics: StepMetrics = serde_json::from_value(json!({"step": 1, "loss": -0.125, "meanReward": 0.5})).unwrap();
    scene
        .run
        .store
        .create(&paths::trainer_metrics(1), &metrics)
        .await
        .unwrap();
    scene.run.stepped(1, "a-v1").await;
    scene.send(&mut scene.tracker()).await.unwrap();
    scene.check();
    let finite = metrics.numbers().into_iter().filter(|(_, value)| value.is_finite());
    let expected: BTreeMap<String, f64> = finite.map(|(name, value)| (format!("trainer/{name}"), value)).collect();
    let history = scene.there().history();
    assert_eq!(history.len(), 1);
    let row: BTreeMap<String, f64> = (history[0].as_object().unwrap().iter())
        .filter(|(name, _)| name.contains('/'))
        .map(|(name, value)| (name.clone(), value.as_f64().unwrap()))
        .collect();
    assert_eq!(row, expected);
    assert_eq!(row["trainer/loss"], -0.125);
    let axes = scene.there().config["_wandb"]["value"]["m"].clone();
    let axes = axes.as_array().unwrap();
    assert_eq!(axes[0], json!({"1": "step"}));
    let named: Vec<&str> = axes[1..].iter().map(|axis| axis["1"].as_str().unwrap()).collect();
    assert_eq!(named, expected.keys().map(String::as_str).collect::<Vec<_>>());
    assert!(axes[1..].iter().all(|axis| axis["5"] == json!(1)));
}

#[tokio::test]
async fn a_driver_that_is_started_again_sends_only_rows_that_the_server_lacks() {
    let mut scene = Scene::new().await;
    for step in 0..5 {
        scene.run.evaluated("a-v0", step % 4).await;
    }
    scene.send(&mut scene.tracker()).await.unwrap();
    scene.run.evaluated("a-v0", 4).await;
    scene.send(&mut scene.tracker()).await.unwrap();
    scene.check();
    let there = scene.there();
    let rows: Vec<usize> = there.posts.iter().copied().filter(|rows| *rows > 0).collect();
    assert_eq!((rows, there.repeated), (vec![5, 1], 0));
    let curves = there.config["_wandb"]["value"]["m"].as_array().unwrap().len();
    assert_eq!(curves, 4, "the next driver keeps the axes of earlier curves");
}

#[tokio::test]
async fn rows_that_the_server_has_not_counted_yet_come_again_with_the_same_content() {
    let mut scene = Scene::new().await;
    for resolved in 0..4 {
        scene.run.evaluated("a-v0", resolved).await;
    }
    scene.send(&mut scene.tracker()).await.unwrap();
    scene.server.count_behind(3);
    scene.run.evaluated("a-v0", 4).await;
    scene.send(&mut scene.tracker()).await.unwrap();
    scene.check();
    assert_eq!(scene.there().repeated, 3);
    assert_eq!(scene.values(RATE), [(0, 0.0), (0, 0.25), (0, 0.5), (0, 0.75), (0, 1.0)]);
}

#[tokio::test]
async fn a_server_that_counts_more_rows_than_the_journal_has_gets_the_next_ones_in_their_places() {
    let mut scene = Scene::new().await;
    for resolved in 0..2 {
        scene.run.evaluated("a-v0", resolved).await;
    }
    scene.send(&mut scene.tracker()).await.unwrap();
    scene.server.count_ahead(3);
    let mut tracker = scene.tracker();
    scene.send(&mut tracker).await.unwrap();
    for resolved in 2..4 {
        scene.run.evaluated("a-v0", resolved).await;
        // As after a failure: the server is asked for its count once more.
        scene.send(&mut tracker).await.unwrap();
    }
    scene.check();
    assert_eq!(scene.there().repeated, 0);
    assert_eq!(scene.values(RATE), [(0, 0.0), (0, 0.25), (0, 0.5), (0, 0.75)]);
}

#[tokio::test]
async fn rows_that_were_not_accepted_are_kept_and_only_they_are_sent_again() {
    let mut scene = Scene::new().await;
    let mut tracker = scene.tracker();
    let mut reader = Reader::new(scene.run.store.clone());
    scene.measured(1).await;
    advance(&mut tracker, &mut reader).await.unwrap();
    scene.measured(2).await;
    scene.server.refuse(503, 1);
    let error = advance(&mut tracker, &mut reader).await.unwrap_err().to_string();
    assert!(error.starts_with("adding rows at "), "{error}");
    // Without these files the journal gives no row.
    for step in [1, 2] {
        std::fs::remove_file(scene.run.folder.path().join(paths::trainer_metrics(step))).unwrap();
    }
    // The server counts later than it accepts.
    scene.server.count_behind(1);
    scene.send(&mut tracker).await.unwrap();
    scene.check();
    assert_eq!(scene.values("trainer/loss"), [(1, -1.0), (2, -2.0)]);
    let there = scene.there();
    let rows: Vec<usize> = there.posts.iter().copied().filter(|rows| *rows > 0).collect();
    assert_eq!((rows, there.repeated), (vec![1, 1], 0));
    assert_eq!(there.summary["trainer/loss"], json!(-2.0));
}

#[tokio::test]
async fn more_rows_than_are_kept_are_dropped_and_read_again_from_the_journal() {
    for (kept, journal_from) in [(1, 0), (2, 3)] {
        let mut scene = Scene::new().await;
        let mut tracker = scene.tracker();
        tracker.kept = kept;
        let mut reader = Reader::new(scene.run.store.clone());
        scene.measured(1).await;
        advance(&mut tracker, &mut reader).await.unwrap();
        scene.measured(2).await;
        scene.measured(3).await;
        scene.server.refuse(503, 1);
        advance(&mut tracker, &mut reader).await.unwrap_err();
        assert_eq!(tracker.begin(0).await.unwrap(), journal_from, "{kept} are kept");
        assert_eq!(tracker.waiting.is_empty(), journal_from == 0);
        scene.send(&mut tracker).await.unwrap();
        scene.check();
        assert_eq!(scene.values("trainer/loss"), [(1, -1.0), (2, -2.0), (3, -3.0)]);
        assert_eq!(scene.there().repeated, 0);
    }
}

#[tokio::test]
async fn a_server_that_lost_the_run_gets_all_rows_again() {
    let mut scene = Scene::new().await;
    let mut tracker = scene.tracker();
    scene.run.evaluated("a-v0", 1).await;
    scene.send(&mut tracker).await.unwrap();
    scene.server = PlayedWandb::start("127.0.0.1").await.unwrap();
    tracker.server.url.clone_from(&scene.server.url);
    scene.run.evaluated("a-v0", 2).await;
    scene.send(&mut tracker).await.unwrap();
    scene.check();
    assert_eq!(scene.values(RATE), [(0, 0.25), (0, 0.5)]);
}

#[tokio::test]
async fn many_rows_go_in_bounded_requests_with_pauses() {
    let mut scene = Scene::new().await;
    let rows = 2 * ROWS + 1;
    for _ in 0..rows {
        scene.run.evaluated("a-v0", 1).await;
    }
    let every = Duration::from_millis(40);
    let mut tracker = scene.tracker_of(json!({"project": "swe"}), every);
    let began = Instant::now();
    scene.send(&mut tracker).await.unwrap();
    let took = began.elapsed();
    scene.check();
    let there = scene.there();
    assert_eq!((there.history().len(), there.posts.iter().sum::<usize>()), (rows, rows));
    assert!(
        there.posts.len() > 2 && there.posts.iter().all(|rows| *rows <= ROWS),
        "{:?}",
        there.posts
    );
    assert!(
        took >= every * (there.posts.len() as u32 - 1),
        "{took:?}: {:?}",
        there.posts
    );
}

#[tokio::test]
async fn a_failed_run_that_is_resumed_runs_again_there_and_the_end_of_a_driver_is_no_end() {
    let mut scene = Scene::new().await;
    scene.run.evaluated("a-v0", 1).await;
    scene.run.finished(false).await;
    let mut tracker = scene.tracker();
    scene.send(&mut tracker).await.unwrap();
    assert_eq!((scene.there().state, scene.there().exit_code), ("failed", Some(1)));
    let posts = scene.there().posts.len();
    tracker.stand(Standing::Ended { succeeded: false }).await.unwrap();
    assert_eq!(scene.there().posts.len(), posts, "the end is sent once");

    scene.run.note(Event::DriverStarted { epoch: 2 }).await;
    let mut tracker = scene.tracker();
    scene.send(&mut tracker).await.unwrap();
    assert_eq!(scene.there().state, "running");
    drop(tracker);
    assert_eq!(scene.there().state, "running");
    scene.run.evaluated("a-v0", 2).await;
    scene.run.finished(true).await;
    scene.send(&mut scene.tracker()).await.unwrap();
    assert_eq!((scene.there().state, scene.there().exit_code), ("finished", Some(0)));
    assert_eq!(scene.values(RATE), [(0, 0.25), (0, 0.5)]);
    scene.check();
}

#[tokio::test]
async fn a_silent_run_sends_a_heartbeat_now_and_then() {
    let mut scene = Scene::new().await;
    scene.run.evaluated("a-v0", 1).await;
    let mut tracker = scene.tracker();
    scene.send(&mut tracker).await.unwrap();
    let posts = scene.there().posts.len();
    tracker.stand(Standing::Working).await.unwrap();
    assert_eq!(scene.there().posts.len(), posts);
    tracker.last_post = Some(Instant::now().checked_sub(HEARTBEAT).unwrap());
    tracker.stand(Standing::Working).await.unwrap();
    let there = scene.there();
    assert_eq!((there.posts.len(), there.posts[posts]), (posts + 1, 0));
}

#[tokio::test]
async fn a_wrong_key_and_a_missing_one_are_named_with_what_to_do_and_without_the_key() {
    let mut scene = Scene::new().await;
    scene.run.evaluated("a-v0", 1).await;
    let file = scene.run.folder.path().join("key");
    let wrong = "f".repeat(KEY.len());
    std::fs::write(&file, &wrong).unwrap();
    let mut tracker = scene.tracker();
    let error = scene.send(&mut tracker).await.unwrap_err().to_string();
    let url = &scene.server.url;
    assert!(
        error.starts_with(&format!("finding the run at {url}: the server answers 401: ")),
        "{error}"
    );
    assert!(
        error.contains("the Secret of trackers.wandb.upload.apiKeySecretRef"),
        "{error}"
    );
    assert!(!error.contains(&wrong), "{error}");
    std::fs::remove_file(&file).unwrap();
    let error = scene.send(&mut tracker).await.unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("reading the token or key {}", file.display())),
        "{error}"
    );
    // A Secret that was replaced.
    std::fs::write(&file, KEY).unwrap();
    scene.send(&mut tracker).await.unwrap();
    assert_eq!(scene.there().history().len(), 1);
}

#[tokio::test]
async fn a_limit_on_requests_is_waited_for_and_other_errors_name_their_cause() {
    let mut scene = Scene::new().await;
    scene.run.evaluated("a-v0", 1).await;
    let mut tracker = scene.tracker();
    scene.server.refuse(429, 1);
    let error = scene.send(&mut tracker).await.unwrap_err().to_string();
    assert!(error.contains("the server answers 429"), "{error}");
    scene.send(&mut tracker).await.unwrap();
    scene.check();
    // A refusal of GraphQL comes with status 200.
    let error = tracker
        .graphql("asking", "query Other { a }", json!({}))
        .await
        .unwrap_err();
    let url = &scene.server.url;
    let expected = format!("asking at {url}: the server refuses it: the simulated server does not know Other");
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn a_page_for_people_is_not_taken_for_weights_and_biases() {
    let mut scene = Scene::new().await;
    scene.run.evaluated("a-v0", 1).await;
    for page in ["<html>Log in</html>", "[]", "{}"] {
        let app = axum::Router::new().fallback(move || async move { page });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        let mut tracker = scene.tracker();
        tracker.server.url = url;
        let error = scene.send(&mut tracker).await.unwrap_err().to_string();
        assert!(
            error.contains("the answer is not that of Weights & Biases; check the url"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn entity_and_project_are_part_of_the_address_with_their_signs_escaped() {
    let mut scene = Scene::new().await;
    scene.run.evaluated("a-v0", 1).await;
    let mut tracker = scene.tracker_of(json!({"entity": "a team", "project": "a&b c"}), Duration::ZERO);
    scene.send(&mut tracker).await.unwrap();
    assert_eq!(scene.server.run("a team", "a&b c", "uid").unwrap().history().len(), 1);
    // Without a project it is the namespace.
    let mut tracker = scene.tracker_of(json!({}), Duration::ZERO);
    scene.send(&mut tracker).await.unwrap();
    assert_eq!(scene.server.run(ENTITY, "team", "uid").unwrap().history().len(), 1);
}

#[tokio::test]
async fn the_played_server_refuses_a_gap_and_overwrites_what_comes_again() {
    let mut scene = Scene::new().await;
    scene.run.evaluated("a-v0", 1).await;
    let mut tracker = scene.tracker();
    scene.send(&mut tracker).await.unwrap();
    let stream = tracker.stream.clone().unwrap();
    let post = async |offset: u64, row: Value| {
        let body = json!({"files": {HISTORY: {"offset": offset, "content": [row.to_string()]}}});
        let request = tracker.server.http.post(stream.clone()).json(&body);
        tracker.send("posting", request).await
    };
    let error = post(2, json!({"a": 1})).await.unwrap_err().to_string();
    assert!(error.contains("the server answers 400"), "{error}");
    assert_eq!(scene.server.refused(), ["rows from 2 on, and 1 are there"]);
    post(0, json!({"a": 1})).await.unwrap();
    post(1, json!({"a": 2})).await.unwrap();
    let there = scene.there();
    assert_eq!(there.history(), [json!({"a": 1}), json!({"a": 2})]);
    assert_eq!((there.repeated, there.changed), (1, 1));
}
