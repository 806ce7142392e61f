use super::*;

#[test]
fn a_position_is_read_as_it_was_written() {
    for at in [
        Position::default(),
        Position {
            number: 7,
            within: 2,
            busy: true,
            doing: "writing weights l1-v3".to_owned(),
        },
    ] {
        assert_eq!(Position::parse(&at.to_string()), Some(at));
    }
    assert_eq!(Position::parse("x 1"), None);
}
