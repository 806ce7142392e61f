use super::*;

#[test]
fn the_first_lease_keeps_the_sandbox() {
    let binding = Binding::default();
    assert_eq!(binding.check("a", 1), Err(LeaseError::Unbound));
    assert_eq!(binding.admits("b", 1), Ok(()));
    assert_eq!(binding.bind("a", 1, 60), Ok(()));
    assert_eq!(binding.bind("a", 1, 60), Ok(()));
    for (lease, epoch) in [("b", 1), ("a", 2)] {
        assert_eq!(
            binding.bind(lease, epoch, 60),
            Err(LeaseError::OtherLease { bound: "a".to_owned() })
        );
        assert!(binding.check(lease, epoch).is_err() && binding.admits(lease, epoch).is_err());
    }
    assert_eq!(binding.check("a", 1), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_was_given_back_ends_and_obeys_nobody() {
    let binding = Binding::default();
    assert_eq!(binding.end("a", 1), Err(LeaseError::Unbound));
    binding.bind("a", 1, 10).unwrap();
    assert!(binding.end("b", 2).is_err() && !binding.is_ending());
    assert_eq!(binding.end("a", 1), Ok(()));
    assert_eq!(binding.ended().await, End::Reset);
    assert_eq!(binding.check("a", 1), Err(LeaseError::Ending));
    assert_eq!(binding.bind("a", 1, 10), Err(LeaseError::Ending));
    assert_eq!(binding.bind("b", 2, 10), Err(LeaseError::Ending));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_nobody_renews_runs_out() {
    let binding = Binding::default();
    binding.bind("a", 1, 10).unwrap();
    let began = Instant::now();
    assert_eq!(binding.ended().await, End::Expired);
    assert!(began.elapsed() >= Duration::from_secs(10) && began.elapsed() < Duration::from_secs(11));
}
