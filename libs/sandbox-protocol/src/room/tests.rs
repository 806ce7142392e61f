use super::*;
use futures::FutureExt as _;

#[test]
fn a_third_large_body_waits_until_one_of_two_is_dropped_and_a_small_one_does_not() {
    let room = Room::of_files(2);
    let take = |bytes| room.take(bytes).now_or_never();
    let first = take(MAX_FILE_BYTES).unwrap().hold(vec![0; MAX_FILE_BYTES]);
    let _second = take(MAX_FILE_BYTES).unwrap();
    assert!(take(MAX_FILE_BYTES).is_none());
    assert!(take(SMALL).is_some());
    let copy = first.clone();
    drop(first);
    assert!(take(MAX_FILE_BYTES).is_none(), "a copy keeps the bytes in memory");
    drop(copy);
    assert!(take(MAX_FILE_BYTES).is_some());
}

#[test]
fn what_turns_out_smaller_gives_the_rest_back() {
    let room = Room::of_files(2);
    let take = |bytes| room.take(bytes).now_or_never();
    let _bytes: Vec<Bytes> = (0..10)
        .map(|_| take(MAX_FILE_BYTES).unwrap().hold(vec![0; 2 * SMALL]))
        .collect();
    assert!(take(MAX_FILE_BYTES).is_some());
}
