use super::*;
use futures::FutureExt as _;

fn address(nth: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, nth])
}

fn is_gone(place: &Place) -> bool {
    place.taken_away().now_or_never().is_some()
}

#[test]
fn a_caller_with_too_many_connections_pushes_out_its_own() {
    let places = Places::default();
    let other = places.take(address(1)).unwrap();
    let many: Vec<Place> = (0..UNPROVEN_OF_ONE + 3)
        .map(|_| places.take(address(2)).unwrap())
        .collect();
    assert!(!is_gone(&other));
    assert_eq!(many.iter().map(is_gone).filter(|gone| *gone).count(), 3);
    assert!(!is_gone(&many[3]));
}

#[test]
fn when_all_are_taken_whoever_never_called_as_the_gateway_gives_way_to_a_newcomer() {
    let places = Places::default();
    let proven = places.take(address(1)).unwrap();
    proven.prove();
    let many: Vec<Place> = (1..ALL)
        .map(|nth| places.take(address((nth / 10) as u8 + 10)).unwrap())
        .collect();
    assert!(!many.iter().any(is_gone));
    let gateway = places.take(address(1)).unwrap();
    assert!(is_gone(&many[0]) && !is_gone(&many[1]) && !is_gone(&proven) && !is_gone(&gateway));
}

#[test]
fn relays_that_are_all_in_use_leave_room_for_the_gateways_other_calls() {
    let places = Places::default();
    let relays: Vec<Place> = (0..8 * 17)
        .filter_map(|_| places.take(address(1)).inspect(Place::prove))
        .collect();
    assert_eq!(relays.len(), 136);
    assert!(places.take(address(1)).is_some());
}

#[test]
fn a_place_is_free_again_when_its_connection_has_ended() {
    let places = Places::default();
    let proven: Vec<Place> = (0..ALL)
        .map(|_| places.take(address(1)).unwrap())
        .inspect(Place::prove)
        .collect();
    assert!(places.take(address(2)).is_none());
    drop(proven);
    assert!(places.take(address(2)).is_some());
    assert!(places.lock().connections.is_empty());
}
