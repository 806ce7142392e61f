//! Runs of the tool-calling loop: programs of KodCode, a real Python, pytest and pdb.

use crate::world::{Silence, World};
use crate::{world, world::InjectedFault};
use grpo_crds::grpo_run::{Mode, RowFormat};
use grpo_driver::agent::AgentKind;
use grpo_driver::agent::tools::ToolsSpec;
use grpo_driver::config::Settings;
use grpo_driver::fault::DriverError;
use grpo_records::folder::RunFolder;
use grpo_records::{EpisodeEnd, Outcome, TurnAction, TurnRecord, VoidReason, paths};
use grpo_sandbox_protocol::{ExecRequest, Lease, Priority, SandboxCause};
use regex_lite::Regex;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// The demo's template, with tools.
const TEMPLATE: &str = "{% if tools %}{{ '<|im_start|>system\\n' }}{% for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}\
    {{ '<|im_end|>\\n' }}{% endif %}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + \
    message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}\
    {% endif %}";
const CODE: &str = "def add(a, b):\n    total = a - b\n    return total\n";
const TESTS: &str = "from solution import add\n\n\ndef test_add():\n    assert add(1, 1) == 2\n";

fn row(id: usize, files: &BTreeMap<String, String>) -> Value {
    let file = |(path, content)| json!({"path": path, "content": content});
    let files: Vec<Value> = files.iter().map(file).collect();
    json!({
        "task_id": format!("case-{id}"), "problem_statement": "Find the bug.", "prompt": "[]",
        "extra_info": {"task_name": "t", "entrypoint": "python -m pytest -s test.py", "files": files},
    })
}

pub fn program() -> BTreeMap<String, String> {
    [("solution.py", CODE), ("test.py", TESTS)]
        .map(|(path, text)| (path.to_owned(), text.to_owned()))
        .into()
}

fn call(name: &str, arguments: &Value) -> String {
    let call = json!({"name": name, "arguments": arguments});
    format!("<tool_call>\n{call}\n</tool_call>")
}

fn pdb(command: &str) -> String {
    call("pdb", &json!({"command": command, "runner": null, "file": null}))
}

fn start() -> String {
    call(
        "pdb",
        &json!({"command": "start", "runner": "pytest", "file": "test.py::test_add"}),
    )
}

fn rewrite(path: &str, line: u32, code: &str) -> String {
    call(
        "rewrite",
        &json!({"path": path, "start": line, "end": line, "new_code": code}),
    )
}

/// The number of the episode's next answer.
fn turn_of(prompt: &str) -> usize {
    prompt.matches("<|im_start|>assistant").count() - 1
}

/// A world with these programs, whose policy calls tools; and settings that evaluate each program once.
pub async fn world_of(programs: &[BTreeMap<String, String>], spec: &str) -> (World, Settings) {
    let world = World::new(1).await;
    let rows = programs
        .iter()
        .enumerate()
        .map(|(id, files)| row(id, files).to_string());
    std::fs::write(&world.tasks, rows.collect::<Vec<_>>().join("\n")).unwrap();
    world.gateway.state.lock().unwrap().programs = Some(world::pytest());
    let mut settings = world.settings();
    settings.mode = Mode::Evaluate;
    let train = &mut settings.train.as_mut().unwrap().tasks;
    for tasks in std::iter::once(train).chain(settings.evaluate.iter_mut().map(|set| &mut set.tasks)) {
        tasks.format = RowFormat::KodCode;
        tasks.image = Some("img/kod:1".to_owned());
    }
    settings.model = world::model_with(TEMPLATE, world.mount.path());
    settings.agent.kind = tools(spec);
    settings.agent.limits.turns = 12;
    settings.agent.limits.episode_timeout = Duration::from_secs(600);
    settings.agent.limits.context_tokens = 1 << 20;
    settings.agent.limits.output_bytes = 16 << 10;
    settings.sampling.max_tokens_per_call = 1 << 16;
    (world, settings)
}

fn tools(spec: &str) -> AgentKind {
    let spec: grpo_crds::agent::ToolsAgent = serde_json::from_str(spec).unwrap();
    AgentKind::Tools(ToolsSpec::of(&spec))
}

/// The policy of an episode: an answer for each turn, then words.
fn says(world: &World, answers: Vec<String>) {
    *world.engine.policy.lock().unwrap() = Box::new(move |prompt, _| {
        let answer = answers.get(turn_of(prompt)).cloned();
        answer.unwrap_or_else(|| "I am done.".to_owned())
    });
}

fn turns(folder: &RunFolder, path: &str) -> Vec<TurnRecord> {
    folder.ended(path).unwrap().unwrap().turns().unwrap()
}

/// Runs a world's only episode: its end, outcome and turns.
async fn only_episode(world: &World, settings: Settings) -> (EpisodeEnd, Outcome, Vec<TurnRecord>) {
    world.go(settings, 1).await.unwrap();
    let folder = world.verified().await;
    let metas = world.metas().await;
    assert_eq!(metas.len(), 1, "{metas:?}");
    let meta = &metas[0];
    let turns = turns(&folder, &meta.key.dir(meta.attempt));
    (meta.end, meta.outcome.clone(), turns)
}

fn told(turns: &[TurnRecord]) -> Vec<&str> {
    turns.iter().map(|turn| turn.observation_text.as_str()).collect()
}

/// Removes what differs by machine and moment.
fn normal(text: &str) -> String {
    let text = Regex::new(r"/[\w./-]*/lib/python3\.\d+/")
        .unwrap()
        .replace_all(text, "/python/");
    let text = Regex::new(r"/\S*/lease-\d+/testbed")
        .unwrap()
        .replace_all(&text, "/testbed")
        .into_owned();
    let text = Regex::new(r"0x[0-9a-f]+")
        .unwrap()
        .replace_all(&text, "0xADDRESS")
        .into_owned();
    Regex::new(r"in \d+\.\d+s")
        .unwrap()
        .replace_all(&text, "in TIME")
        .into_owned()
}

#[tokio::test]
async fn tools_answer_recorded_calls_as_those_of_the_original_do() {
    let cases: Value = serde_json::from_str(include_str!("tools/answers.json")).unwrap();
    let cases = cases.as_array().unwrap();
    // No call can carry arguments that are no object, or an empty name.
    let can_be_called = |step: &&Value| step["arguments"].is_object() && step["name"] != "";
    let steps: Vec<Vec<Value>> = cases
        .iter()
        .map(|case| {
            case["steps"]
                .as_array()
                .unwrap()
                .iter()
                .filter(can_be_called)
                .cloned()
                .collect()
        })
        .collect();
    let programs: Vec<BTreeMap<String, String>> = cases
        .iter()
        .map(|case| serde_json::from_value(case["files"].clone()).unwrap())
        .collect();
    let spec = r#"{"task": "{{ task.instance_id }}.", "system": "", "directoryTree": false}"#;
    let (world, mut settings) = world_of(&programs, spec).await;
    let longest = steps.iter().map(Vec::len).max().unwrap();
    settings.agent.limits.turns = longest as u32;
    settings.agent.limits.command_timeout = Duration::from_secs(30);
    settings.agent.limits.context_tokens = 1 << 24;
    let answers = steps.clone();
    *world.engine.policy.lock().unwrap() = Box::new(move |prompt, _| {
        let (_, case) = prompt.split_once("case-").unwrap();
        let (case, _) = case.split_once('.').unwrap();
        let step = answers[case.parse::<usize>().unwrap()].get(turn_of(prompt));
        step.map_or_else(
            || "I am done.".to_owned(),
            |step| call(step["name"].as_str().unwrap(), &step["arguments"]),
        )
    });
    world.go(settings, 1).await.unwrap();
    let folder = world.verified().await;
    let (mut compared, mut better) = (0, 0);
    let mut differing = Vec::new();
    for meta in world.metas().await {
        assert!(meta.outcome.is_verdict(), "{meta:?}");
        let case: usize = meta.key.instance.strip_prefix("case-").unwrap().parse().unwrap();
        let turns = turns(&folder, &meta.key.dir(meta.attempt));
        assert!(
            turns.len() >= steps[case].len(),
            "case {case} ended after {} turns",
            turns.len()
        );
        for (turn, step) in turns.iter().zip(&steps[case]) {
            let (ours, theirs) = (normal(&turn.observation_text), step["answer"].as_str().unwrap());
            compared += 1;
            // In a diff of the original, a last line without a line end runs into the next line.
            let joined = |text: &str| text.replace('\n', "");
            if ours != theirs && step["name"] == "rewrite" && joined(&ours) == joined(theirs) {
                better += 1;
            } else if ours != theirs {
                differing.push(format!("case {case} {step:#}\n--- ours\n{ours}\n--- theirs\n{theirs}"));
            }
        }
    }
    assert!(compared >= 200, "{compared}");
    assert_eq!(better, 2, "the calls of a file without an end of its last line");
    assert!(
        differing.is_empty(),
        "{} of {compared}:\n{}",
        differing.len(),
        differing.join("\n======\n")
    );
}

#[tokio::test]
async fn a_run_learns_through_the_debugger_and_its_verdicts_can_be_judged_again() {
    let (world, mut settings) = world_of(&[program(), program()], "{}").await;
    *world.engine.policy.lock().unwrap() = Box::new(|prompt, seed| match turn_of(prompt) {
        0 => format!("Stop in it.\n{}\n{}", start(), pdb("b solution.py:3")),
        1 => pdb("c"),
        2 => pdb("p a, b, total"),
        3 if seed.is_multiple_of(2) => rewrite("solution.py", 2, "    total = a + b"),
        // Rewrites the tests: the policy sees them pass, which resolves nothing.
        3 => rewrite("test.py", 5, "    assert True"),
        _ => call("eval", &json!({})),
    });
    settings.mode = Mode::Train;
    settings.iterations = 1;
    settings.evaluate.clear();
    world.go(settings, 1).await.unwrap();
    world.nothing_ran_twice();
    let folder = world.verified().await;
    let metas = world.metas().await;
    let (mut resolved, mut unresolved) = (0, 0);
    for meta in &metas {
        assert_eq!(meta.end, EpisodeEnd::Submitted, "eval saw all tests pass");
        let turns = turns(&folder, &meta.key.dir(meta.attempt));
        let told = told(&turns);
        assert!(told[0].starts_with("PDB session started with: python -m pytest -sq test.py::test_add --trace"));
        assert!(
            told[0].contains("\n\nPdb command output:\nBreakpoint 1 at /testbed/solution.py:3"),
            "{}",
            told[0]
        );
        assert!(told[1].contains("> /testbed/solution.py(3)add()"), "{}", told[1]);
        assert_eq!(told[2], "Pdb command output:\n(1, 1, 0)\n");
        let mended = turns[3].text.contains("a + b");
        assert_eq!(meta.outcome == Outcome::Resolved, mended, "{:?}", meta.outcome);
        *(if mended { &mut resolved } else { &mut unresolved }) += 1;
    }
    assert!(resolved > 0 && unresolved > 0, "{resolved} {unresolved}");
    let first = turns(&folder, &metas[0].key.dir(1)).remove(0);
    let opening: Vec<&str> = first.opening.iter().map(|message| message.role.as_str()).collect();
    assert_eq!(opening, ["system", "user"]);
    assert!(
        first.opening[0].content.ends_with(
            "Listing files in the current working directory./testbed/\n|-- .git/\n|-- solution.py\n|-- test.py \
             (read-only) indicates read-only files. Max depth: 1.\n"
        ),
        "{}",
        first.opening[0].content
    );
}

#[tokio::test]
async fn calls_in_the_form_of_qwen3_coder_are_read() {
    let (world, settings) = world_of(&[program()], r#"{"callFormat": "Qwen3Coder", "toolset": "Rewrite"}"#).await;
    assert_eq!(
        tools(r#"{"callFormat": "Qwen3Coder", "toolset": "Rewrite"}"#),
        settings.agent.kind
    );
    let rewrite = "<tool_call>\n<function=rewrite>\n<parameter=path>\nsolution.py\n</parameter>\n<parameter=start>\n2\n\
                   </parameter>\n<parameter=end>\nnull\n</parameter>\n<parameter=new_code>\n    total = a + b\n\
                   </parameter>\n</function>\n</tool_call>";
    let eval = "<tool_call>\n<function=eval>\n</function>\n</tool_call>";
    says(&world, vec![pdb("c"), format!("{rewrite}\n{eval}")]);
    let (end, outcome, turns) = only_episode(&world, settings).await;
    assert_eq!((end, outcome), (EpisodeEnd::Submitted, Outcome::Resolved));
    assert_eq!(
        turns[0].action.kind,
        TurnAction::MALFORMED_CALL,
        "that was Hermes' form"
    );
    assert!(
        turns[1]
            .observation_text
            .contains("-    total = a - b\n+    total = a + b\n")
    );
}

#[tokio::test]
async fn a_program_that_hangs_and_one_that_dies_are_answers_for_the_policy() {
    let hanging = "def add(a, b):\n    while True:\n        pass\n";
    let files = BTreeMap::from([
        ("solution.py".to_owned(), hanging.to_owned()),
        ("test.py".to_owned(), TESTS.to_owned()),
    ]);
    let (world, mut settings) = world_of(&[files], r#"{"bash": true}"#).await;
    settings.agent.limits.command_timeout = Duration::from_secs(8);
    settings.agent.limits.turns = 8;
    says(
        &world,
        vec![
            start(),
            pdb("c"),
            pdb("p 1"),
            start(),
            pdb("p __import__('os')._exit(3)"),
            pdb(&format!("p '{}'", "x".repeat(5000))),
            call("eval", &json!({})),
            call("bash", &json!({"command": "echo $COLUMNS; exit 3"})),
        ],
    );
    let (end, outcome, turns) = only_episode(&world, settings).await;
    assert_eq!((end, outcome), (EpisodeEnd::TurnLimit, Outcome::Unresolved));
    let told = told(&turns);
    assert!(
        told[1].starts_with("Pdb command output:\nThe command `c` has timed out. TimeoutError("),
        "{}",
        told[1]
    );
    assert!(told[1].ends_with("\n\nPdb quit.\n"), "{}", told[1]);
    assert!(
        told[2].starts_with("Failure calling pdb:\nPDB session is not running."),
        "{}",
        told[2]
    );
    assert!(told[3].starts_with("PDB session started with:"), "{}", told[3]);
    assert_eq!(told[4], "Pdb command output:\n\n\nPdb quit.\n");
    assert!(
        told[5].starts_with("Failure calling pdb:\nPDB session is not running."),
        "{}",
        told[5]
    );
    assert!(
        told[6].starts_with("Timeout expired after 8 seconds. The command took too long"),
        "{}",
        told[6]
    );
    assert_eq!(told[7], "Command failed with output:\n200");
}

#[tokio::test]
async fn a_session_goes_on_with_the_new_code_after_a_rewrite_and_keeps_its_breakpoints() {
    let (world, settings) = world_of(&[program()], r#"{"listAfterContinue": true, "evalAfterRewrite": true}"#).await;
    says(
        &world,
        vec![
            start(),
            pdb("b solution.py:3, a == 1"),
            rewrite("solution.py", 2, "    # Both.\n    total = a * b"),
            pdb("c"),
            pdb("p total"),
            pdb(&format!("p '{}'", "x".repeat(5000))),
            pdb("cl"),
            rewrite("solution.py", 3, "    total = a + b"),
        ],
    );
    let (end, outcome, turns) = only_episode(&world, settings).await;
    let told = told(&turns);
    assert!(told[1].contains("\tstop only if a == 1"), "{}", told[1]);
    assert!(
        told[2].contains("+    # Both.\n") && told[2].contains("1 failed"),
        "{}",
        told[2]
    );
    assert!(
        told[3].starts_with("The code was rewritten: the debugging session was restarted.\nPdb command output:\n"),
        "{}",
        told[3]
    );
    assert!(told[3].contains("> /testbed/solution.py(4)add()"), "{}", told[3]);
    assert!(
        told[3].contains("\nContext around the current frame:\n  1  \tdef add"),
        "{}",
        told[3]
    );
    assert_eq!(told[4], "Pdb command output:\n1\n");
    assert!(told[5].contains("The command has a line of 5004 bytes"), "{}", told[5]);
    assert_eq!(told[6], "All breakpoints have been cleared.\n");
    assert!(told[7].contains("1 passed"), "{}", told[7]);
    assert_eq!((end, outcome), (EpisodeEnd::Submitted, Outcome::Resolved));
}

#[tokio::test]
async fn a_restarted_driver_goes_on_in_the_session_of_the_first() {
    let (world, settings) = world_of(&[program()], "{}").await;
    let (reached, mut at) = tokio::sync::watch::channel(0);
    let engine = world.engine.clone();
    let (all, engine_of_policy) = (
        vec![
            start(),
            pdb("b solution.py:3"),
            pdb("c"),
            pdb("p total"),
            rewrite("solution.py", 2, "    total = a + b"),
            call("eval", &json!({})),
        ],
        engine.clone(),
    );
    *engine.policy.lock().unwrap() = Box::new(move |prompt, _| {
        let turn = turn_of(prompt);
        if reached.send_replace(turn) < 2 && turn == 2 {
            // The first driver gets no answer after this one.
            *engine_of_policy.silence.lock().unwrap() = Some(Silence::Hangs);
        }
        all[turn].clone()
    });
    let run = world.start(settings.clone(), 1).await.unwrap();
    let third = async {
        at.wait_for(|turn| *turn == 2).await.unwrap();
        let is_third = |path: &String| path.ends_with("/turns/002.json");
        let store = world.store();
        while !store
            .files_below(paths::EVALUATIONS)
            .await
            .unwrap()
            .iter()
            .any(is_third)
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        ended = run.go() => panic!("{ended:?}"),
        () = third => {}
    }
    drop(run);
    *engine.silence.lock().unwrap() = None;
    world.go(settings, 2).await.unwrap();
    let folder = world.verified().await;
    let metas = world.metas().await;
    assert_eq!((metas.len(), metas[0].attempt), (1, 1), "no other attempt");
    let turns = turns(&folder, &metas[0].key.dir(1));
    let leases: std::collections::BTreeSet<&str> = turns.iter().map(|turn| turn.lease.as_str()).collect();
    assert_eq!(leases.len(), 1);
    assert_eq!(
        told(&turns)[3],
        "Pdb command output:\n0\n",
        "it is the frame in which the first driver stopped"
    );
    assert_eq!(metas[0].outcome, Outcome::Resolved);
}

#[tokio::test]
async fn a_sandbox_that_is_lost_under_a_tool_is_a_void_and_one_that_the_policy_used_up_is_not() {
    for (cause, expected) in [
        (SandboxCause::NodeLost, None),
        (SandboxCause::OutOfMemory, Some(EpisodeEnd::SandboxExhausted)),
    ] {
        let (world, mut settings) = world_of(&[program()], "{}").await;
        settings.patience.void_retries = 0;
        says(&world, vec![call("eval", &json!({}))]);
        let lost = move |_: &Lease, priority: Priority, request: &ExecRequest| -> Option<InjectedFault> {
            let is_tool = priority == Priority::Agent && request.id.starts_with("t0-c");
            is_tool.then(|| world::lost(cause))
        };
        *world.gateway.hook.lock().unwrap() = Some(Box::new(lost));
        // A set without a verdict ends the run.
        assert_eq!(world.go(settings, 1).await.is_ok(), expected.is_some());
        let metas = world.metas().await;
        match expected {
            Some(end) => assert_eq!((metas[0].end, metas[0].outcome.is_verdict()), (end, true), "{metas:?}"),
            None => assert_eq!(metas[0].outcome, Outcome::void(VoidReason::SandboxLost)),
        }
    }
}

#[tokio::test]
async fn a_task_without_a_test_command_is_refused_before_the_run() {
    let world = World::new(1).await;
    let mut settings = world.settings();
    settings.agent.kind = tools("{}");
    let ended = world.start(settings, 1).await.err();
    let Some(DriverError::Terminal(fault)) = ended else {
        panic!("{ended:?}");
    };
    assert_eq!(fault.reason, "NoTestCommand");
    assert!(fault.message.starts_with("task task-0 has no test command"), "{fault}");
}
