use super::*;
use std::pin::pin;
use std::task::{Context, Waker};

const LIMITS: Limits = Limits {
    known: 12,
    known_of_one: 8,
    unknown: 6,
    unknown_of_one: 3,
};

fn address(nth: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, nth])
}

fn take(places: &Places, nth: u8) -> Place {
    places.take(address(nth)).unwrap()
}

/// A notification is read once, so each place is asked once.
fn is_gone(place: &Place) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    pin!(place.taken_away()).poll(&mut context).is_ready()
}

fn gone(places: &[Place]) -> Vec<bool> {
    places.iter().map(is_gone).collect()
}

#[test]
fn an_unknown_address_with_too_many_connections_pushes_out_its_own_oldest() {
    let places = Places::new(LIMITS);
    let other = take(&places, 1);
    let many: Vec<Place> = (0..5).map(|_| take(&places, 2)).collect();
    assert_eq!(gone(&many), [true, true, false, false, false]);
    assert!(!is_gone(&other));
}

#[test]
fn a_newcomer_pushes_out_the_oldest_of_the_unknown_address_with_the_most() {
    let places = Places::new(LIMITS);
    let single = take(&places, 1);
    let two: Vec<Place> = (0..2).map(|_| take(&places, 2)).collect();
    let three: Vec<Place> = (0..3).map(|_| take(&places, 3)).collect();
    let newcomer = take(&places, 4);
    assert_eq!(gone(&three), [true, false, false]);
    let another = take(&places, 5);
    // Both have two now; the second address's are older.
    assert_eq!(gone(&two), [true, false]);
    assert!(!is_gone(&single) && !is_gone(&newcomer) && !is_gone(&another));
}

#[test]
fn a_caller_finds_a_place_however_many_connections_unknown_addresses_open() {
    let places = Places::new(LIMITS);
    let driver = take(&places, 1);
    driver.of_requests().keep().unwrap();
    let attackers: Vec<Place> = (10..60).map(|nth| take(&places, nth)).collect();
    let more: Vec<Place> = (0..7).map(|_| take(&places, 1)).collect();
    assert!(!is_gone(&driver) && !gone(&more).contains(&true));
    assert_eq!(
        gone(&attackers).into_iter().filter(|gone| !gone).count(),
        LIMITS.unknown
    );
    // Another driver, which has shown no token yet.
    let other = take(&places, 2);
    other.of_requests().keep().unwrap();
    let late: Vec<Place> = (100..150).map(|nth| take(&places, nth)).collect();
    assert!(!is_gone(&other));
    drop(late);
}

#[test]
fn a_known_address_has_a_bound_too_and_leaves_places_to_others() {
    let places = Places::new(LIMITS);
    let authorised = |nth: u8, count: usize| -> Vec<Place> {
        let taken = (0..count).map(|_| take(&places, nth));
        taken.inspect(|place| place.of_requests().keep().unwrap()).collect()
    };
    let busy = authorised(1, LIMITS.known_of_one);
    assert!(places.take(address(1)).is_none());
    let other = authorised(2, LIMITS.known - LIMITS.known_of_one);
    let third = take(&places, 3);
    let refused = third.of_requests().keep().unwrap_err();
    assert_eq!(refused, NoPlace { limit: LIMITS.known });
    assert!(refused.to_string().contains("use fewer connections"), "{refused}");
    drop(other);
    third.of_requests().keep().unwrap();
    drop(busy);
    assert!(places.take(address(1)).is_some());
}

#[test]
fn unauthorised_connections_of_known_addresses_give_way_to_those_of_other_known_addresses() {
    let places = Places::new(LIMITS);
    let authorised: Vec<Place> = (1..4).map(|nth| take(&places, nth)).collect();
    for place in &authorised {
        place.of_requests().keep().unwrap();
    }
    // Two nodes' addresses take all places that are left.
    let nodes = [2, 3].into_iter().cycle();
    let fillers: Vec<Place> = nodes.take(LIMITS.known - 3).map(|nth| take(&places, nth)).collect();
    assert!(!gone(&fillers).contains(&true));
    let probe = take(&places, 1);
    let nth_is_gone = |nth: usize| -> Vec<bool> { (0..fillers.len()).map(|at| at == nth).collect() };
    assert_eq!(gone(&fillers), nth_is_gone(0));
    let caller = take(&places, 4);
    caller.of_requests().keep().unwrap();
    assert_eq!(gone(&fillers), nth_is_gone(1));
    assert!(!is_gone(&probe) && !is_gone(&caller) && !gone(&authorised).contains(&true));
}

#[test]
fn an_address_is_unknown_again_when_its_authorised_connections_have_ended() {
    let places = Places::new(LIMITS);
    let known = take(&places, 1);
    known.of_requests().keep().unwrap();
    known.of_requests().keep().unwrap();
    let further: Vec<Place> = (0..5).map(|_| take(&places, 1)).collect();
    drop(known);
    let next = take(&places, 1);
    assert_eq!(gone(&further), [true, false, false, false, false]);
    drop((further, next));
    assert!(places.lock().peers.is_empty());
}

#[test]
fn an_address_counts_once_in_both_of_its_forms() {
    let places = Places::new(LIMITS);
    let mapped: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
    let first = take(&places, 1);
    let more: Vec<Place> = (0..3).map(|_| places.take(mapped).unwrap()).collect();
    assert!(is_gone(&first));
    drop(more);
}

#[test]
fn every_share_of_the_places_is_smaller_than_the_whole() {
    for all in [512, 20_480] {
        let limits = Limits::of(all);
        assert_eq!(limits.known + limits.unknown, all);
        assert!(limits.known_of_one < limits.known && limits.unknown_of_one < limits.unknown);
        assert!(limits.unknown_of_one > 0);
    }
}
