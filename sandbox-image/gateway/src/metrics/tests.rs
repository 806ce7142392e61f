use super::*;
use crate::index::Bounds;
use grpo_sandbox_protocol::LedgerEntry;
use std::collections::BTreeSet;

fn held(warm: bool, queued: bool) -> ActiveLease {
    let entry = LedgerEntry {
        lease: "l".into(),
        run: "r".into(),
        sandbox: "s".into(),
        pod_uid: "u".into(),
        restarts: 0,
        image: "x".into(),
        epoch: 1,
        expires_at: 1,
        ttl_millis: 1,
        priority: Priority::Agent,
    };
    ActiveLease {
        warm,
        queued,
        ..ActiveLease::restored(entry, Default::default(), 0)
    }
}

#[test]
fn what_happened_and_what_there_is_can_be_read() {
    let metrics = Metrics::new(Counters::default());
    for (warm, queued) in [(true, false), (false, false), (false, true), (true, true)] {
        metrics.leased(&held(warm, queued), Duration::from_millis(7));
    }
    metrics.executed(true, Duration::from_secs(2));
    metrics.executed(false, Duration::from_secs(1));
    metrics.wrote("create");
    metrics.lost(SandboxCause::OutOfMemory);
    let lost = ErrorBody::lost("a", SandboxCause::OutOfMemory);
    metrics.refused(&lost);
    let full = ErrorBody::new(ErrorCode::QueueDeadline, FaultOrigin::Infrastructure, "full");
    metrics.refused(&full);
    let bounds = Bounds {
        max: 4,
        reserved: 1,
        warm_max: 4,
        orders: 4,
        waiting: 4,
        per_node: None,
        max_ttl_millis: 1000,
        idle_millis: 1000,
    };
    let around = Around {
        starts: 3,
        ..Around::default()
    };
    let text = metrics.text(&Index::new(bounds), around, 0).unwrap();
    for line in [
        "grpo_gateway_lease_wait_seconds_count{path=\"warm\",priority=\"Agent\"} 1",
        "grpo_gateway_lease_wait_seconds_count{path=\"cold\",priority=\"Agent\"} 1",
        "grpo_gateway_lease_wait_seconds_count{path=\"queued\",priority=\"Agent\"} 2",
        "grpo_gateway_exec_seconds_sum{answer=\"outcome\"} 2.0",
        "grpo_gateway_exec_seconds_count{answer=\"error\"} 1",
        "grpo_gateway_faults_total{kind=\"OutOfMemory\",fault=\"Workload\"} 1",
        "grpo_gateway_faults_total{kind=\"QueueDeadline\",fault=\"Infrastructure\"} 1",
        "grpo_gateway_sandboxes{state=\"ending\"} 0",
        "grpo_gateway_leases_waiting{priority=\"Grader\"} 0",
        "grpo_gateway_leases_cold_total 0",
        "grpo_gateway_images_left_alone 0",
        "grpo_gateway_pod_writes_total{verb=\"create\"} 1",
        "grpo_gateway_ledger_writes_total 0",
        "grpo_gateway_starts_total 3",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    assert!(!text.contains("SandboxLost"));
    let page = include_str!("../../../../docs/src/metrics.md");
    let (_, own) = page.split_once("\n## A sandbox gateway's").unwrap();
    let (own, _) = own.split_once("\n## ").unwrap();
    let rows = own.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let (name, kind) = (cells.next()?.trim_end_matches('`'), cells.next()?);
        Some((name.trim_end_matches("_total").to_owned(), kind.to_owned()))
    });
    let served = text.lines().filter_map(|line| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        Some((name.to_owned(), kind.to_owned()))
    });
    let [rows, served] = [rows.collect::<BTreeSet<_>>(), served.collect()];
    assert_eq!(rows, served, "the book lists what is served");
}
