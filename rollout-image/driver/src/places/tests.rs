use super::*;

#[tokio::test]
async fn what_runs_at_one_time_shares_the_places() {
    let places = Places::default();
    places.resize(2);
    let first = places.take().await;
    let second = places.take().await;
    assert!(places.free.try_acquire().is_err());
    // A smaller pool withdraws places as they become free.
    places.resize(1);
    drop(first);
    places.resize(1);
    assert!(places.free.try_acquire().is_err());
    drop(second);
    assert!(places.free.try_acquire().is_ok());
    places.resize(3);
    assert_eq!(places.free.available_permits(), 3);
}

#[test]
fn demands_of_a_rollout_and_an_evaluation_are_added_and_not_overwritten() {
    let places = Places::default();
    let of = |count| BTreeMap::from([("a:1".to_owned(), count)]);
    let rollout = places.demanding("rollout".into());
    let evaluation = places.demanding("evaluation".into());
    assert_eq!(rollout.replace(of(3))[0].count, 3);
    assert_eq!(evaluation.replace(of(2))[0].count, 5);
    assert_eq!(rollout.replace(BTreeMap::new())[0].count, 2);
    assert!(evaluation.replace(BTreeMap::new()).is_empty());
}

#[test]
fn an_evaluation_that_is_given_up_demands_nothing_more() {
    let places = Places::default();
    let of = |count| BTreeMap::from([("a:1".to_owned(), count)]);
    let given_up = places.demanding("evaluation of a-v1".into());
    assert_eq!(given_up.replace(of(2))[0].count, 2);
    drop(given_up);
    assert_eq!(places.demanding("evaluation of b-v1".into()).replace(of(3))[0].count, 3);
}
