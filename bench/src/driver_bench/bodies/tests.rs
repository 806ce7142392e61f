use super::*;

#[test]
fn bodies_grow_from_13_to_64_kilobytes_and_each_extends_the_one_before() {
    let bodies = conversation();
    assert_eq!(bodies.len(), TURNS);
    let sizes: Vec<usize> = bodies.iter().map(Bytes::len).collect();
    assert!((12_900..=13_000).contains(&sizes[0]), "{}", sizes[0]);
    assert!((63_000..=64_000).contains(&sizes[TURNS - 1]), "{}", sizes[TURNS - 1]);
    let messages = |body: &Bytes| serde_json::from_slice::<Value>(body).unwrap()["messages"].clone();
    for (shorter, longer) in bodies.iter().zip(&bodies[1..]) {
        let (shorter, longer) = (messages(shorter), messages(longer));
        let (shorter, longer) = (shorter.as_array().unwrap(), longer.as_array().unwrap());
        assert_eq!(longer[..shorter.len()], shorter[..]);
        assert_eq!(longer.len(), shorter.len() + 2);
    }
}
