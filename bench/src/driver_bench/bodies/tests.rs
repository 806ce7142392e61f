use super::*;

#[test]
fn bodies_grow_from_13_to_64_kilobytes_and_each_extends_the_one_before() {
    let bodies: Vec<Bytes> = conversation().iter().map(|body| body.of_conversation(7)).collect();
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

#[test]
fn conversations_differ_in_the_problem_and_in_each_result() {
    let last = conversation().pop().unwrap();
    let messages = |number| {
        let body: Value = serde_json::from_slice(&last.of_conversation(number)).unwrap();
        body["messages"].as_array().unwrap().clone()
    };
    for (one, other) in messages(1).iter().zip(&messages(2)) {
        assert_eq!(one["role"], other["role"]);
        let differs = one["role"] == "user" || one["role"] == "tool";
        assert_eq!(one != other, differs, "{one}");
    }
}
