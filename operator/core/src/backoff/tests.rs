use super::*;

#[test]
fn a_pause_doubles_up_to_the_longest() {
    let pause = |doublings| FAILED_PODS.pause(doublings).as_secs();
    assert_eq!(
        [pause(0), pause(1), pause(5), pause(6), pause(40)],
        [5, 10, 160, 300, 300]
    );
}
