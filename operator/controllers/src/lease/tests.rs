use super::*;

fn elector(identity: &str) -> Elector {
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let client = Client::try_from(config).unwrap();
    Elector::new(client, "system", "lease", identity, Arc::new(WriteWindow::new()))
}

fn held_by(holder: &str, seconds: i32) -> Lease {
    Lease {
        metadata: ObjectMeta::default(),
        spec: Some(LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(seconds),
            lease_transitions: Some(3),
            ..LeaseSpec::default()
        }),
    }
}

#[tokio::test]
async fn anothers_lease_is_free_when_it_was_not_renewed_for_its_time_since_it_was_seen() {
    let (elector, since) = (elector("a"), Instant::now());
    let free = |lease: Option<&Lease>| elector.free_at(lease, since) - since;
    assert_eq!(free(Some(&held_by("b", 15))), Duration::from_secs(15));
    assert_eq!(free(Some(&held_by("b", -1))), Duration::ZERO);
    assert_eq!(free(Some(&held_by("", 1))), Duration::ZERO, "given back");
    assert_eq!(
        free(Some(&held_by("a", 15))),
        Duration::ZERO,
        "its own, from before a restart"
    );
    assert_eq!(free(Some(&Lease::default())), Duration::ZERO);
    assert_eq!(free(None), Duration::ZERO);
}

#[tokio::test]
async fn a_change_of_holders_is_counted_and_a_renewal_is_not() {
    let transitions = |lease: &Lease| lease.spec.as_ref().unwrap().lease_transitions;
    let taken = elector("a").held(Some(&held_by("b", 15)));
    assert_eq!((holder(&taken), transitions(&taken)), (Some("a"), Some(4)));
    let renewed = elector("a").held(Some(&taken));
    assert_eq!(transitions(&renewed), Some(4));
    let acquired = |lease: &Lease| lease.spec.as_ref().unwrap().acquire_time.clone();
    assert_eq!(acquired(&renewed), acquired(&taken));
}

#[tokio::test(start_paused = true)]
async fn writes_are_let_through_until_ten_seconds_after_a_renewal_began() {
    let window = WriteWindow::new();
    assert!(!window.is_open());
    window.extend(Instant::now());
    tokio::time::advance(WINDOW - Duration::from_millis(2)).await;
    assert!(window.is_open());
    tokio::time::advance(Duration::from_millis(2)).await;
    assert!(!window.is_open());
    window.extend(Instant::now());
    assert!(window.is_open());
    window.close();
    assert!(!window.is_open());
}
