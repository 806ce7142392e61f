use super::*;
use futures::stream;
use serde_json::{Value, json};

fn run(uid: &str, status: Value) -> GrpoRun {
    let mut run: Value = serde_yaml_ng::from_str(include_str!("../../../../docs/examples/demo.yaml")).unwrap();
    run["metadata"]["uid"] = uid.into();
    run["metadata"]["namespace"] = "team".into();
    run["status"] = status;
    serde_json::from_value(run).unwrap()
}

fn in_phase(phase: &str) -> GrpoRun {
    run("uid-1", json!({"phase": phase, "message": format!("it is {phase}")}))
}

fn failed() -> GrpoRun {
    let condition = json!({
        "type": "Failed", "status": "True", "reason": "NoTasks", "message": "no task is left; widen select",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    run("uid-1", json!({"phase": "Failed", "conditions": [condition]}))
}

type Item = Result<Event<GrpoRun>, watcher::Error>;

fn reset() -> kube::Error {
    kube::Error::Service(Box::new(std::io::Error::from(std::io::ErrorKind::ConnectionReset)))
}

/// The API server does not answer.
fn broken() -> Item {
    Err(watcher::Error::WatchStartFailed(reset()))
}

/// A watch is cut; the next one begins at once.
fn cut() -> Item {
    Err(watcher::Error::WatchFailed(reset()))
}

#[derive(Default)]
struct Heard {
    states: Vec<String>,
    failures: usize,
}

impl Observer for Heard {
    fn state(&mut self, run: &GrpoRun) -> Result<(), Error> {
        self.states.push(state(run));
        Ok(())
    }

    fn failure(&mut self, why: &str) {
        assert!(why.contains("failed to start watching"), "{why}");
        self.failures += 1;
    }
}

async fn waited(events: Vec<Item>) -> (Result<GrpoRun, Error>, Heard) {
    let mut heard = Heard::default();
    let ended = until_ended(stream::iter(events), "demo", "team", None, &mut heard).await;
    (ended.and_then(outcome), heard)
}

#[tokio::test]
async fn a_run_that_succeeds_ends_the_wait_and_each_state_is_shown() {
    let events = [Event::Init, Event::InitApply(in_phase("Queued")), Event::InitDone];
    let later = [Event::Apply(in_phase("Running")), Event::Apply(in_phase("Succeeded"))];
    let (ended, heard) = waited(events.into_iter().chain(later).map(Ok).collect()).await;
    assert!(ended.is_ok());
    assert_eq!(
        heard.states,
        ["Queued, it is Queued", "Running", "Succeeded, it is Succeeded"]
    );
}

#[tokio::test]
async fn a_run_that_fails_says_the_reason_and_the_next_step() {
    let (ended, _) = waited(vec![Ok(Event::Apply(failed()))]).await;
    let error = ended.unwrap_err();
    assert_eq!(error.exit_code(), 3);
    let said = error.to_string();
    for part in ["NoTasks", "widen select", "kubectl grpo logs demo -n team"] {
        assert!(said.contains(part), "{part:?} is missing in {said}");
    }
}

#[tokio::test]
async fn a_run_that_has_not_ended_at_the_timeout_says_its_last_state() {
    let events = stream::iter([Ok(Event::Apply(in_phase("Queued")))]).chain(stream::pending());
    let ended = until_ended(events, "demo", "team", Some(Duration::ZERO), &mut Heard::default()).await;
    let error = ended.unwrap_err();
    assert_eq!(error.exit_code(), 4);
    assert!(error.to_string().contains("Queued, it is Queued"), "{error}");
}

#[tokio::test]
async fn a_watch_that_breaks_is_begun_again_a_bounded_number_of_times() {
    let breaks = |times: u32| (0..times).map(|_| broken());
    let mut events: Vec<Item> = breaks(RECONNECTS).collect();
    events.push(Ok(Event::Apply(in_phase("Running"))));
    events.extend(breaks(RECONNECTS));
    events.push(Ok(Event::Apply(in_phase("Succeeded"))));
    let (ended, heard) = waited(events).await;
    assert!(ended.is_ok());
    assert_eq!(heard.failures, 2 * RECONNECTS as usize);
    let (ended, heard) = waited(breaks(RECONNECTS + 1).collect()).await;
    let error = ended.unwrap_err();
    assert_eq!((error.exit_code(), heard.failures), (1, RECONNECTS as usize));
    assert!(error.to_string().contains("`kubectl grpo status demo`"), "{error}");
}

#[tokio::test]
async fn a_watch_that_is_cut_is_no_failure_until_it_cannot_begin_again() {
    let quiet = |times: u32| (0..times).map(|_| cut());
    let succeeds = || Ok(Event::Apply(in_phase("Succeeded")));
    let (ended, heard) = waited(quiet(RECONNECTS).chain([succeeds()]).collect()).await;
    assert!(ended.is_ok());
    assert_eq!(heard.failures, 0);
    let (ended, heard) = waited(vec![cut(), broken(), succeeds()]).await;
    assert!(ended.is_ok());
    assert_eq!(heard.failures, 1);
}

#[tokio::test]
async fn a_run_that_is_deleted_or_made_anew_ends_the_wait() {
    let other = run("uid-2", json!({"phase": "Succeeded"}));
    let began = || Ok(Event::Apply(in_phase("Running")));
    for events in [
        vec![began(), Ok(Event::Delete(in_phase("Running")))],
        vec![began(), Ok(Event::Apply(other))],
        vec![began(), broken(), Ok(Event::Init), Ok(Event::InitDone)],
    ] {
        let error = waited(events).await.0.unwrap_err();
        assert!(matches!(error, Error::RunDeleted { .. }), "{error}");
    }
}

#[tokio::test]
async fn an_observer_that_cannot_show_a_state_ends_the_watch() {
    struct Closed;
    impl Observer for Closed {
        fn state(&mut self, _: &GrpoRun) -> Result<(), Error> {
            Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into())
        }
        fn failure(&mut self, _: &str) {}
    }
    let events = stream::iter([Ok(Event::Apply(in_phase("Running")))]).chain(stream::pending());
    let error = until_ended(events, "demo", "team", None, &mut Closed)
        .await
        .unwrap_err();
    assert!(error.is_broken_pipe(), "{error}");
}

#[tokio::test]
async fn a_refused_watch_names_what_is_missing() {
    let status = kube::core::Status::failure("no", "Forbidden").with_code(403).boxed();
    let refused = watcher::Error::WatchStartFailed(kube::Error::Api(status));
    let error = waited(vec![Err(refused)]).await.0.unwrap_err();
    assert!(matches!(error, Error::Forbidden { verb: "watch", .. }), "{error}");
}

#[test]
fn on_a_terminal_the_progress_is_one_line_and_elsewhere_a_line_for_each_change() {
    for (terminal, wanted) in [
        (true, "\r\u{1b}[KRunning\r\u{1b}[KSucceeded, it is Succeeded\n"),
        (false, "Running\nSucceeded, it is Succeeded\n"),
    ] {
        let mut progress = ProgressLine {
            out: Vec::new(),
            terminal,
            shown: String::new(),
        };
        for phase in ["Running", "Running", "Succeeded"] {
            progress.state(&in_phase(phase)).unwrap();
        }
        progress.end();
        assert_eq!(String::from_utf8(progress.out).unwrap(), wanted);
    }
}
