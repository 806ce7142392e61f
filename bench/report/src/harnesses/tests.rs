use super::*;

fn harness(name: &str, api: &str, missing: usize) -> Harness {
    Harness {
        name: name.into(),
        version: "1.0".into(),
        api: api.into(),
        streams: true,
        tasks: (0..20).map(|at| format!("task-{at}")).collect(),
        episodes: 40,
        turns: 200,
        rows: 42,
        branches: BTreeMap::from([("First".into(), 40), ("Conversation".into(), 2)]),
        injected: 0,
        replays: 0,
        overruled: vec!["temperature".into()],
        seconds: 80.0,
        sampled: 1000,
        trained: 1000 - missing,
        trained_not_sampled: 0,
        sampled_not_trained: missing,
    }
}

#[test]
fn a_sampled_token_that_is_missing_breaks_its_bar() {
    let met = |harnesses: &[Harness]| bench(harnesses).rows.iter().filter(|row| !row.meets_its_bar()).count();
    let apis = ["ChatCompletions", "Responses", "Messages"];
    let mut all: Vec<Harness> = (0..6)
        .map(|at| harness(&format!("agent-{at}"), apis[at % 3], 0))
        .collect();
    assert_eq!(met(&all), 0);
    all[1].sampled_not_trained = 3;
    assert_eq!(met(&all), 1);
    all.truncate(2);
    assert_eq!(met(&all), 3, "too few agents and too few APIs");
}

#[test]
fn an_agent_that_is_called_in_two_ways_is_one_agent() {
    let both = [
        harness("pi", "ChatCompletions", 0),
        harness("pi, messages", "Messages", 0),
    ];
    assert_eq!(bench(&both).rows[0].value, Some(1.0));
    let table = table(&both);
    assert!(
        table.contains("Conversation 2 ; temperature") && !table.contains("First"),
        "{table}"
    );
}
