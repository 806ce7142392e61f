use super::*;

fn found(reached: &[&str], failed: Option<&str>) -> EgressReport {
    EgressReport {
        at: 1_000_000,
        tried: vec!["the API server (10.0.0.1:443)".into()],
        reached: reached.iter().map(|&what| what.to_owned()).collect(),
        blocked_after_seconds: None,
        failed: failed.map(str::to_owned),
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_leased_until_a_probe_has_shown_walls() {
    let egress = Egress::restored(None, None, false, 0);
    let early = egress.shown_to_be_blocked(Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(early.code, ErrorCode::EgressUnproven);
    let waits = egress.shown_to_be_blocked(Duration::from_secs(60));
    let (waited, ()) = tokio::join!(waits, async {
        egress.found.send_replace(Some(found(&[], None)));
    });
    assert_eq!(waited, Ok(()));
    egress
        .found
        .send_replace(Some(found(&["the API server (10.0.0.1:443)"], None)));
    let refused = egress.shown_to_be_blocked(Duration::from_secs(60)).await.unwrap_err();
    assert!(
        refused.message.contains("reached the API server (10.0.0.1:443)"),
        "{refused}"
    );
}

#[test]
fn a_gateway_that_begins_believes_only_a_fresh_report_of_walls() {
    let restored = |millis: i64, found, unenforced| {
        let egress = Egress::restored(Some(found), None, unenforced, 1_000_000 + millis);
        egress.report().is_some()
    };
    let after = |millis, found| restored(millis, found, false);
    assert!(after(60_000, found(&[], None)));
    assert!(!after(3_600_000, found(&[], None)));
    assert!(!after(60_000, found(&["x"], None)) && !after(60_000, found(&[], Some("no sandbox"))));
    let nothing_tried = EgressReport {
        tried: Vec::new(),
        ..found(&[], None)
    };
    assert!(!after(60_000, nothing_tried));
    let late = EgressReport {
        blocked_after_seconds: Some(6),
        ..found(&["x"], None)
    };
    assert!(
        !after(60_000, late),
        "a sandbox that reaches the network at first shows no isolation"
    );
    // With `unenforced`, the report of any completed probe is enough.
    assert!(restored(60_000, found(&["x"], None), true));
    assert!(!restored(60_000, found(&[], Some("no sandbox")), true));
}

/// The known result after a probe at minute 0 and a failed probe at this minute.
fn after_a_failed_probe(known: EgressReport, minute: i64) -> EgressReport {
    let egress = Egress::restored(None, None, false, 0);
    egress.found(known, 1_000_000);
    egress.found(
        found(&[], Some("no sandbox was free in time")),
        1_000_000 + minute * 60_000,
    );
    egress.report().unwrap()
}

#[test]
fn a_probe_that_could_not_be_made_leaves_what_an_earlier_one_has_shown_until_its_hour_is_over() {
    assert!(after_a_failed_probe(found(&[], None), 59).is_blocked());
    assert!(after_a_failed_probe(found(&[], None), 60).failed.is_some());
    assert_eq!(after_a_failed_probe(found(&["x"], None), 59).reached, ["x"]);
    let first = found(&[], Some("another cause"));
    let last = after_a_failed_probe(first, 1).failed.unwrap();
    assert_eq!(last, "no sandbox was free in time", "the last cause is told");
}

#[test]
fn what_was_shown_is_shown_again_before_it_is_old_and_a_failed_probe_is_made_again_with_growing_pauses() {
    let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
    let at = |minute: i64| 1_000_000 + minute * 60_000;
    let (mut pauses, good) = (ProbePauses::default(), found(&[], None));
    assert_eq!(pauses.next(None, false, at(0)), Duration::ZERO);
    assert_eq!(pauses.next(Some(&good), false, at(0)), minutes(54));
    pauses.has_failed = true;
    let tries = [0; 3].map(|_| pauses.next(Some(&good), false, at(55)).as_secs());
    assert_eq!(tries, [10, 20, 40]);
    let last = [0; 5].map(|_| pauses.next(Some(&good), false, at(59)).as_secs());
    assert_eq!(last, [60; 5], "when it is old, it is tried once more");
    assert!(pauses.next(Some(&good), false, at(60)) > minutes(1));
    pauses.has_failed = false;
    assert_eq!(pauses.next(Some(&good), false, at(10)), minutes(44));
    let reached = found(&["x"], None);
    assert_eq!(pauses.next(Some(&reached), false, at(10)).as_secs(), 10);
}

#[test]
fn the_advice_of_a_refusal_fits_its_cause() {
    let without_a_place = why_not(Some(&found(&[], Some("no sandbox was free in time"))));
    assert!(without_a_place.contains("made again by itself"), "{without_a_place}");
    assert!(!without_a_place.contains("network plugin"), "{without_a_place}");
    let reached = why_not(Some(&found(&["the gateway (10.0.0.2:8080)"], None)));
    assert!(reached.contains("install a network plugin"), "{reached}");
    let late = EgressReport {
        blocked_after_seconds: Some(6),
        ..found(&["the gateway (10.0.0.2:8080)"], None)
    };
    let late = why_not(Some(&late));
    assert!(late.contains("NETWORK_POLICY_ENFORCING_MODE=strict"), "{late}");
    assert!(!late.contains("install a network plugin"), "{late}");
}
