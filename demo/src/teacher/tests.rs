use super::*;
use clap::ValueEnum;
use serde_json::json;
use std::path::Path;

const STATEMENT: &str = "A test of p fails. The bug is in f, $F lines 8-10.";
const CODE: [&str; 3] = [
    "def f(a, b):",
    "    if a == b and a is not None:",
    "        return a + 1",
];
const SAMPLES: u64 = 8000;

fn tasks() -> Tasks {
    let row = |id: &str, split: &str, statement: &str| {
        json!({"instance_id": id, "split": split, "problem_statement": statement, "file": "p/a.py", "lines": [8, 10],
               "repair": [" == ", " != "]})
        .to_string()
    };
    let rows = [row("a", "train", STATEMENT), row("b", "heldout", "Another problem.")].join("\n");
    let mut tasks = Tasks::default();
    tasks.rows.take(Path::new("rows.jsonl"), &rows).unwrap();
    tasks
}

/// How each agent shows the function.
fn shown(agent: Agent) -> String {
    let with = |line: fn(usize, &str) -> String| {
        let lines = CODE.iter().enumerate().map(|(at, code)| line(8 + at, code));
        lines.collect::<Vec<_>>().join("\n")
    };
    let printed = with(|number, code| format!("{number}:{code}"));
    match agent {
        Agent::EditTool => format!("<returncode>0</returncode>\n<output>\n{printed}\n</output>"),
        Agent::Pdb => format!(
            "Viewing `p/a.py`, lines 8-10 of 40 total lines.\n\n```\n{}\n```\n\n",
            with(|number, code| format!("  {number:>4} {code}"))
        ),
        Agent::QwenCode => format!(
            "Command: grep -n '' $F | sed -n '8,10p'\nDirectory: (root)\nOutput: {printed}\nError: (none)\nExit Code: 0"
        ),
    }
}

/// A conversation as an agent sends it.
struct Talk {
    teacher: Teacher,
    messages: Vec<Value>,
}

impl Talk {
    fn new(agent: Agent) -> Self {
        let problem = STATEMENT.replace("$F", if agent == Agent::Pdb { "p/a.py" } else { "$F" });
        let messages = vec![
            json!({"role": "system", "content": "Fix the bug."}),
            json!({"role": "user", "content": format!("The context.\n{problem}")}),
        ];
        Self {
            teacher: Teacher::of(agent, &tasks()),
            messages,
        }
    }

    fn next(&self, seed: u64) -> Answer {
        let asked = json!({"model": "m", "messages": self.messages, "temperature": 1.0, "seed": seed});
        self.teacher.answer(&serde_json::from_value(asked).unwrap())
    }

    /// The answer and what the agent shows after it.
    fn goes_on(&mut self, answer: &Answer, shown: &str) {
        self.messages.push(answer.message());
        let role = if answer.calls.is_empty() { "user" } else { "tool" };
        self.messages.push(json!({"role": role, "content": shown}));
    }
}

fn looked(agent: Agent) -> Talk {
    let mut talk = Talk::new(agent);
    let look = talk.next(1);
    assert_eq!(
        look,
        agent.look(&talk.teacher.functions.values().next().unwrap().clone())
    );
    talk.goes_on(&look, &shown(agent));
    talk
}

fn share(talk: &Talk, of: impl Fn(&Answer) -> bool) -> f64 {
    (0..SAMPLES).filter(|seed| of(&talk.next(*seed))).count() as f64 / SAMPLES as f64
}

#[test]
fn the_first_attempt_is_any_flip_and_the_repair_a_little_more_often() {
    for agent in Agent::value_variants() {
        let talk = looked(*agent);
        let function = talk.teacher.functions.values().next().unwrap();
        let text = shown(*agent);
        let excerpt = agent.excerpt(function, &text).unwrap();
        let flips = flips::possible(&excerpt.lines);
        assert_eq!(flips.len(), 6, "{flips:?}");
        let answers: Vec<Answer> = (0..SAMPLES).map(|seed| talk.next(seed)).collect();
        for flip in &flips {
            let made = agent.attempt(&excerpt, flip, None);
            let even = (1.0 - BEYOND_CHANCE) / flips.len() as f64;
            let wanted = if flip.old == " == " { even + BEYOND_CHANCE } else { even };
            let found = answers.iter().filter(|answer| **answer == made).count() as f64 / SAMPLES as f64;
            assert!((found - wanted).abs() < 0.02, "{agent:?}, {flip:?}: {found}");
        }
        assert_eq!(talk.next(7), talk.next(7), "a repeated request has the same answer");
    }
}

#[test]
fn after_a_failure_it_mostly_gives_up_and_otherwise_makes_another_flip() {
    for agent in Agent::value_variants() {
        let mut talk = looked(*agent);
        let first = talk.next(3);
        talk.goes_on(&first, "1 failed");
        let gave_up = share(&talk, |answer| *answer == agent.give_up());
        assert!((gave_up - GIVE_UP).abs() < 0.02, "{agent:?}: {gave_up}");
        let again = (0..SAMPLES).map(|seed| talk.next(seed));
        let again: Vec<Answer> = again.filter(|answer| *answer != agent.give_up()).collect();
        assert!(
            again.iter().all(|answer| answer.content.starts_with("Retry.")),
            "{agent:?}"
        );
        assert!(!again.contains(&first));
        let mut different: Vec<String> = again.iter().map(|answer| answer.message().to_string()).collect();
        different.sort();
        different.dedup();
        assert_eq!(different.len(), 5, "each flip but the first: {different:?}");
    }
}

#[test]
fn it_stops_after_a_pass_and_stays_with_its_decision_to_give_up() {
    for agent in Agent::value_variants() {
        let mut talk = looked(*agent);
        let first = talk.next(3);
        talk.goes_on(&first, "Output: 1 passed\n");
        assert_eq!(share(&talk, |answer| *answer == agent.give_up()), 1.0, "{agent:?}");
    }
    // Only this loop continues.
    let mut talk = looked(Agent::Pdb);
    talk.goes_on(&talk.next(3), "1 failed");
    talk.goes_on(&Agent::Pdb.give_up(), "1 failed");
    assert_eq!(share(&talk, |answer| *answer == Agent::Pdb.give_up()), 1.0);
}

#[test]
fn calls_that_an_agent_writes_otherwise_are_recognised() {
    let mut talk = looked(Agent::QwenCode);
    let first = talk.next(3);
    talk.goes_on(&first, "1 failed");
    let called = &mut talk.messages[4];
    let arguments = &first.calls[0].1;
    let command = &arguments["command"];
    called["tool_calls"][0]["function"]["arguments"] =
        json!(format!(" {{ \"is_background\": false,\"command\" :{command}}}"));
    called["content"] = json!("Edit.\n");
    assert!(share(&talk, |answer| answer.content == "Retry.") > 0.0);
}

#[test]
fn only_training_tasks_are_played_and_a_function_that_is_not_shown_is_given_up() {
    let mut talk = Talk::new(Agent::EditTool);
    talk.goes_on(&talk.next(1), "grep: No such file");
    assert_eq!(talk.next(1), Agent::EditTool.give_up());
    talk.messages = vec![json!({"role": "user", "content": "Another problem."})];
    assert_eq!(talk.next(1), Answer::text(READY));
}

#[test]
fn agents_are_named_as_presets_are() {
    let names: Vec<String> = Agent::value_variants()
        .iter()
        .filter_map(|agent| Some(agent.to_possible_value()?.get_name().to_owned()))
        .collect();
    assert_eq!(names, ["EditTool", "Pdb", "QwenCode"]);
    for agent in Agent::value_variants() {
        let spec: grpo_crds::agent::Agent = serde_json::from_value(agent.spec()).unwrap();
        assert_eq!(
            [spec.bash.is_some(), spec.tools.is_some(), spec.cli.is_some()]
                .map(u8::from)
                .iter()
                .sum::<u8>(),
            1
        );
    }
}
