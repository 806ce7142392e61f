use super::*;

fn epoch(run: &str, attempt: u32) -> DriverEpoch {
    DriverEpoch {
        run: run.to_owned(),
        attempt,
    }
}

#[test]
fn an_order_is_refused_only_after_a_later_attempt_of_the_same_run() {
    // What was heard before, the order, and whether it is carried out.
    type Heard = &'static [Option<(&'static str, u32)>];
    let cases: [(Heard, Option<(&str, u32)>, Option<u32>); 8] = [
        (&[], Some(("a", 1)), None),
        (&[Some(("a", 3))], Some(("a", 3)), None),
        (&[Some(("a", 3))], Some(("a", 4)), None),
        (&[Some(("a", 4))], Some(("a", 3)), Some(4)),
        (
            &[Some(("a", 3)), Some(("a", 4)), Some(("a", 3))],
            Some(("a", 3)),
            Some(4),
        ),
        (&[Some(("a", 4))], None, None),
        (&[Some(("a", 4)), None], Some(("a", 3)), Some(4)),
        (&[Some(("a", 4)), Some(("b", 1))], Some(("a", 3)), None),
    ];
    for (heard, order, newer) in cases {
        let fence = Fence::default();
        for from in heard {
            let _ = fence.admit(from.map(|(run, attempt)| epoch(run, attempt)), || ());
        }
        let mut carried_out = false;
        let found = fence.admit(order.map(|(run, attempt)| epoch(run, attempt)), || carried_out = true);
        assert_eq!(
            found.map_err(|refused| refused.newer).err(),
            newer,
            "{heard:?} {order:?}"
        );
        assert_eq!(carried_out, newer.is_none(), "{heard:?} {order:?}");
    }
}

#[test]
fn an_attempt_that_asked_for_a_status_is_known_and_one_of_another_run_replaces_no_order() {
    let order = |fence: &Fence, run: &str, attempt| fence.admit(Some(epoch(run, attempt)), || ()).is_ok();
    let fence = Fence::default();
    fence.notice_header(Some(b"a/3"));
    fence.notice_header(Some(b"a/2"));
    fence.notice_header(Some(b"b/9"));
    assert!(!order(&fence, "a", 2));
    fence.notice_header(Some(b"a/4"));
    assert!(!order(&fence, "a", 3));
    assert!(order(&fence, "a", 4));
}

#[test]
fn a_request_for_a_status_that_names_no_attempt_changes_nothing() {
    let fence = Fence::default();
    fence.notice_header(Some(b"a/3"));
    for value in [None, Some(&b"a/four"[..])] {
        fence.notice_header(value);
        assert!(fence.admit(Some(epoch("a", 2)), || ()).is_err(), "{value:?}");
        assert!(fence.admit(Some(epoch("a", 3)), || ()).is_ok(), "{value:?}");
    }
}

#[test]
fn a_missing_header_is_no_error_and_a_malformed_one_is() {
    assert_eq!(DriverEpoch::of_header(None), Ok(None));
    assert_eq!(DriverEpoch::of_header(Some(b"a/1")), Ok(Some(epoch("a", 1))));
    assert_eq!(DriverEpoch::of_header(Some(b"a")), Err(NoDriverEpoch));
}

#[test]
fn an_epoch_is_read_as_it_is_written() {
    let uid = "0c9ee3dd-7d27-4f57-9a5a-0e1d5c1f6b52";
    for written in [epoch(uid, 1), epoch("team/run", 0), epoch("r", u32::MAX)] {
        assert_eq!(DriverEpoch::parse(written.to_string().as_bytes()), Ok(written));
    }
    let longest = format!("{}/1", "r".repeat(98));
    assert!(DriverEpoch::parse(longest.as_bytes()).is_ok());
    let too_long = format!("{}/1", "r".repeat(99));
    let wrong: [&[u8]; 10] = [
        b"",
        b"/1",
        b"run",
        b"run/",
        b"run/+1",
        b"run/-1",
        b"run/one",
        b"run/4294967296",
        b"\xff/1",
        too_long.as_bytes(),
    ];
    for value in wrong {
        assert_eq!(DriverEpoch::parse(value), Err(NoDriverEpoch), "{value:?}");
    }
}

#[test]
fn a_refusal_names_both_attempts_and_no_other_conflict_is_one() {
    let refused = epoch("a", 3).refused(Some(b"4")).unwrap();
    let text = "attempt 3 of the driver gives no orders any more: attempt 4 does";
    assert_eq!(refused.to_string(), text);
    assert_eq!(epoch("a", 3).refused(None), None);
    assert_eq!(epoch("a", 3).refused(Some(b"four")), None);
}
