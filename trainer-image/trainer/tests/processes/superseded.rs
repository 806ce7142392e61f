//! Orders of a driver that a later attempt has followed: they are refused, and change nothing.

use grpo_contracts::driver_epoch::{NEWER_HEADER, SUPERSEDED};
use grpo_records::paths;
use grpo_records::trainer::{StepPhase, TrainerPhase};

use crate::common::process::{Attempt, Run, checksum, until};

const GRANT: (&str, &str) = ("/v1/devices", r#"{"attempt": 1}"#);

fn step(run: &Run, step: u32) -> (String, String) {
    let order = serde_json::json!({"batch": paths::batch(step), "sha256": checksum(run, step)});
    (format!("/v1/steps/{step}"), order.to_string())
}

fn accepted(attempt: &Attempt, driver: &str, (path, body): (&str, &str)) {
    let (status, head, answer) = attempt.ask_as(driver, "PUT", path, body);
    assert_eq!(status, 202, "{path} of {driver}: {answer}");
    assert!(!head.contains(NEWER_HEADER), "{head}");
}

fn refused(attempt: &Attempt, driver: &str, newer: u32, (path, body): (&str, &str)) {
    let (status, head, answer) = attempt.ask_as(driver, "PUT", path, body);
    assert_eq!(status, 409, "{path} of {driver}: {answer}");
    assert!(head.contains(&format!("{NEWER_HEADER}: {newer}")), "{head}");
    let error: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(error["code"], SUPERSEDED);
    let message = error["message"].as_str().unwrap();
    let words = [driver.replace("uid/", "attempt "), format!("attempt {newer}")];
    assert!(words.iter().all(|words| message.contains(words)), "{message}");
}

#[test]
fn grants_and_steps_of_an_earlier_attempt_change_nothing_and_those_of_the_same_or_a_later_one_do() {
    let run = Run::colocated(50);
    let mut attempt = Attempt::begin(&run, 1, 1, 0..1);
    until(|| matches!(attempt.try_ask(0, "GET", "/readyz", ""), Some((200, _))));

    // The later driver has asked for the state, and ordered nothing yet.
    assert_eq!(attempt.ask_as("uid/4", "GET", "/v1/state", "").0, 200);
    refused(&attempt, "uid/3", 4, GRANT);
    assert_eq!(attempt.ask_as("uid/3", "GET", "/v1/state", "").0, 200);
    assert_eq!(attempt.ask_as("no epoch", "PUT", GRANT.0, GRANT.1).0, 400);
    assert_eq!(attempt.state().phase, TrainerPhase::Waiting);
    accepted(&attempt, "uid/4", GRANT);
    attempt.wait_for_orders();

    let orders: Vec<_> = (1..=3).map(|number| step(&run, number)).collect();
    let order = |number: usize| (orders[number - 1].0.as_str(), orders[number - 1].1.as_str());
    refused(&attempt, "uid/3", 4, order(1));
    assert_eq!((attempt.state().step, attempt.state().phase), (0, TrainerPhase::Idle));
    assert_eq!(attempt.ask("GET", "/v1/steps/1", "").0, 404);
    accepted(&attempt, "uid/4", order(1));
    assert_eq!(attempt.outcome(1).state, StepPhase::Done);
    accepted(&attempt, "uid/5", order(2));
    assert_eq!(attempt.outcome(2).state, StepPhase::Done);
    refused(&attempt, "uid/4", 5, order(3));

    // A conflict of another kind, and a driver of an earlier version, which sends no header.
    let (status, head, _) = attempt.ask_as("uid/5", "PUT", "/v1/steps/9", order(3).1);
    assert_eq!(status, 409);
    assert!(!head.contains(NEWER_HEADER), "{head}");
    attempt.step(&run, 3);
}
