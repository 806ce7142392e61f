use super::*;

fn found(reached: &[&str], failed: Option<&str>) -> EgressReport {
    EgressReport {
        at: 1_000_000,
        tried: vec!["the API server (10.0.0.1:443)".into()],
        reached: reached.iter().map(|&what| what.to_owned()).collect(),
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
    // Where nobody waits for better, what is known is known.
    assert!(restored(60_000, found(&["x"], None), true));
    assert!(!restored(60_000, found(&[], Some("no sandbox")), true));
}
