use super::*;

#[test]
fn a_change_of_stage_is_written_at_once_and_a_count_waits() {
    let board = Board::new("u", 3);
    let first = board.watch().borrow().clone();
    let written = (first.clone(), Instant::now());
    board.change(|p| p.episodes_done = Some(1));
    assert!(!due(&board.watch().borrow(), Some(&written)));
    board.begin(Stage::Rollout);
    assert!(due(&board.watch().borrow(), Some(&written)));
    let long_ago = Instant::now().checked_sub(WRITE_EVERY).unwrap();
    let old = (
        Progress {
            episodes_done: Some(0),
            ..board.watch().borrow().clone()
        },
        long_ago,
    );
    assert!(due(&board.watch().borrow(), Some(&old)));
}

#[test]
fn what_is_said_about_one_topic_does_not_silence_another_and_fits_into_the_api() {
    let board = Board::new("u", 3);
    let message = || board.now().message;
    board.say(Topic::Images, Some("no image".into()));
    board.say(Topic::Trainer, Some("no trainer".into()));
    assert_eq!(message().as_deref(), Some("no trainer; no image"));
    board.say(Topic::Trainer, None);
    assert_eq!(message().as_deref(), Some("no image"));
    board.say(Topic::Trainer, Some("ä".repeat(2000)));
    assert_eq!(message().unwrap().chars().count(), 1024);
    board.say(Topic::Trainer, None);
    board.say(Topic::Images, None);
    assert_eq!(message(), None);
}

#[test]
fn stages_overlap_and_the_one_people_wait_for_is_in_front() {
    let board = Board::new("u", 3);
    board.begin(Stage::Training);
    board.begin(Stage::Rollout);
    let now = board.now();
    assert_eq!(
        (now.stage, now.stages),
        (Some(Stage::Rollout), vec![Stage::Training, Stage::Rollout])
    );
    board.end(Stage::Rollout);
    assert_eq!(board.now().stage, Some(Stage::Training));
}

fn evaluated(board: &Board, set: &str, step: u32) {
    board.evaluated(Evaluation {
        set: set.to_owned(),
        weights: format!("l1-v{step}"),
        resolved_rate: 0.5,
        episodes: 8,
    });
}

/// The versions of a set, in their order on the board.
fn versions(board: &Board, set: &str) -> Vec<String> {
    let all = board.now().evaluations.into_iter();
    let of_set = all.filter(|evaluation| evaluation.set == set);
    of_set.map(|evaluation| evaluation.weights).collect()
}

#[test]
fn of_many_evaluations_the_first_of_each_set_and_the_newest_stay() {
    let board = Board::new("u", 3);
    evaluated(&board, "once", 0);
    for step in 0..200 {
        evaluated(&board, "heldout", step);
    }
    assert_eq!(board.now().evaluations.len(), EVALUATIONS_SHOWN);
    assert_eq!(versions(&board, "once"), ["l1-v0"]);
    let heldout = versions(&board, "heldout");
    assert_eq!(heldout[..2], ["l1-v0", "l1-v138"]);
    assert_eq!(heldout.last().unwrap(), "l1-v199");
}

#[test]
fn the_last_evaluation_of_a_set_stays_behind_many_of_another_one() {
    let board = Board::new("u", 3);
    // A driver that starts again shows the sets of the journal one after another.
    for (set, steps) in [("a", 100), ("b", 100)] {
        (0..steps).for_each(|step| evaluated(&board, set, step));
    }
    assert_eq!(versions(&board, "a"), ["l1-v0", "l1-v99"]);
    let b = versions(&board, "b");
    assert_eq!((b.len(), b[0].as_str(), b[61].as_str()), (62, "l1-v0", "l1-v99"));
}

#[test]
fn evaluations_of_more_sets_than_fit_are_bounded() {
    let board = Board::new("u", 3);
    for set in 0..100 {
        evaluated(&board, &format!("set-{set}"), 0);
    }
    assert_eq!(board.now().evaluations.len(), EVALUATIONS_SHOWN);
    assert_eq!(versions(&board, "set-99"), ["l1-v0"]);
}

#[tokio::test]
async fn a_write_applies_progress_alone_and_names_the_runs_uid() {
    use axum::extract::{Request, State};
    use std::sync::{Arc, Mutex};
    type WrittenRequests = Arc<Mutex<Vec<(String, serde_json::Value)>>>;
    let seen: WrittenRequests = Arc::default();
    async fn take(State(seen): State<WrittenRequests>, request: Request) -> axum::Json<serde_json::Value> {
        let at = format!("{} {}", request.method(), request.uri());
        let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        seen.lock().unwrap().push((at, body.clone()));
        axum::Json(json!({
            "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun", "metadata": body["metadata"],
            "spec": {
                "model": {"image": {"reference": "m"}}, "tasks": {}, "agent": {"bash": {}}, "inference": {}, "sandboxes": {}, "store": {},
            },
        }))
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = axum::Router::new().fallback(take).with_state(seen.clone());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let client = kube::Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
    let board = Board::new("uid-1", 3);
    board.begin(Stage::Rollout);
    assert!(write_last(client, "ns", "run", &board.now()).await);
    let (at, body) = seen.lock().unwrap()[0].clone();
    assert!(
        at.starts_with("PATCH /apis/grpo.dev/v1alpha1/namespaces/ns/grporuns/run/status?"),
        "{at}"
    );
    assert!(
        at.contains("fieldManager=grpo-driver") && at.contains("force=true"),
        "{at}"
    );
    assert_eq!(body["metadata"]["uid"], "uid-1");
    assert_eq!(
        body["status"].as_object().unwrap().keys().collect::<Vec<_>>(),
        ["progress"]
    );
    assert_eq!(body["status"]["progress"]["stage"], "Rollout");
}
