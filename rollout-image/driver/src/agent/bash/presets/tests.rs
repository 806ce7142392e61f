use super::*;
use crate::agent::bash::{BashAgent, Prompts};
use crate::agent::turns::LoopAgent as _;
use grpo_records::store::sha256_hex;
use grpo_records::{ExecSummary, TurnAction};
use serde_json::{Map, Value, json};

const PRESETS: [(BashPreset, &str); 2] = [
    (BashPreset::MiniSweAgent1, "MiniSweAgent1"),
    (BashPreset::MiniSweAgentPlus, "MiniSweAgentPlus"),
];

fn prompts(spec: Value) -> Prompts {
    Prompts::of(&serde_json::from_value(spec).unwrap())
}

fn agent(spec: Value) -> BashAgent {
    let limits = json!({"turns": 3, "commandTimeout": 1, "episodeTimeout": 1, "contextTokens": 1});
    BashAgent::new(&prompts(spec), limits).unwrap()
}

fn task(statement: &str) -> Map<String, Value> {
    Map::from_iter([
        ("problem_statement".to_owned(), Value::from(statement)),
        ("working_dir".to_owned(), Value::from("/testbed")),
    ])
}

fn ran(exit_code: Option<i32>, omitted_bytes: u64) -> ExecSummary {
    ExecSummary {
        exec: "e".into(),
        exit_code,
        signal: exit_code.is_none().then_some(9),
        timed_out: false,
        killed: None,
        output_bytes: 0,
        omitted_bytes,
        duration_millis: 1,
    }
}

/// The originals, rendered by `e2e/presets/record.py`.
fn originals() -> Value {
    serde_json::from_str(include_str!("rendered.json")).unwrap()
}

#[test]
fn every_preset_can_be_rehearsed_with_and_without_the_edit_tool() {
    for preset in ["Plain", "MiniSweAgent1", "MiniSweAgentPlus"] {
        for edit_tool in [true, false] {
            let agent = agent(json!({"preset": preset, "editTool": edit_tool}));
            agent.rehearse().unwrap();
            let opening = agent.opening(&task("Bug."), "").unwrap();
            let said: String = opening.into_iter().map(|message| message.content).collect();
            let lines = said.matches(EDIT_TOOL.trim_end()).count();
            assert_eq!(lines, usize::from(edit_tool), "{preset}: {said}");
        }
    }
}

#[test]
fn prompts_and_format_errors_are_the_originals_character_by_character() {
    let originals = originals();
    for (preset, name) in PRESETS {
        let wanted = &originals["presets"][name];
        let agent = agent(json!({"preset": preset}));
        let opening = agent
            .opening(&task(originals["statement"].as_str().unwrap()), "")
            .unwrap();
        assert_eq!(opening[0].content, wanted["system"], "{name}");
        assert_eq!(opening[1].content, wanted["task"], "{name}");
        for (at, blocks) in [0, 2].into_iter().enumerate() {
            let said = agent.observe(&TurnAction::format_error(blocks), None, 1).unwrap();
            assert_eq!(said.text(), wanted["formatErrors"][at], "{name}");
        }
    }
}

#[test]
fn observations_are_the_originals_character_by_character() {
    let originals = originals();
    for (preset, name) in PRESETS {
        let agent = agent(json!({"preset": preset}));
        for (at, output) in originals["outputs"].as_array().unwrap().iter().enumerate() {
            let printed = output["text"]
                .as_str()
                .unwrap()
                .repeat(output["times"].as_u64().unwrap() as usize);
            let status = output["status"].as_i64().unwrap() as i32;
            let said = agent.observation("c", &printed, &ran(Some(status), 0), 1).unwrap();
            match &originals["presets"][name]["observations"][at] {
                Value::String(wanted) => assert_eq!(said, *wanted, "{name}"),
                wanted => assert_eq!(sha256_hex(said.as_bytes()), wanted["sha256"], "{name}: {said}"),
            }
        }
        let mut timed_out = ran(None, 0);
        timed_out.timed_out = true;
        // Blank lines of a block are no part of the command that the policy reads.
        let said = agent.observation("\nsleep 99\n", "so far\n", &timed_out, 1).unwrap();
        assert_eq!(said, originals["presets"][name]["timeout"].as_str().unwrap());
    }
}

#[test]
fn what_the_sandbox_left_out_of_an_output_is_counted_as_elided() {
    let agent = agent(json!({"preset": "MiniSweAgent1"}));
    // As the sandbox writes it: its own line in the gap is no part of the output.
    let (head, tail) = ("a".repeat(32 << 10), "b".repeat(32 << 10));
    let kept = format!("{head}\n[1000 bytes omitted]\n{tail}");
    let said = agent.observation("c", &kept, &ran(Some(0), 1000), 1).unwrap();
    assert!(
        said.contains(&format!("{} characters elided", (64 << 10) + 1000 - 10000)),
        "{said}"
    );
    assert!(said.contains(&format!("<output_head>\n{}\n</output_head>", "a".repeat(5000))));
    assert!(said.contains(&format!("<output_tail>\n{}\n</output_tail>", "b".repeat(5000))));
}

#[test]
fn a_killed_command_has_the_status_that_a_shell_gives_it() {
    for (preset, status) in [
        ("Plain", "Exit code: 137\n"),
        ("MiniSweAgentPlus", "<returncode>137</returncode>\n"),
    ] {
        let agent = agent(json!({"preset": preset}));
        let said = agent.observation("c", "", &ran(None, 0), 1).unwrap();
        assert!(said.starts_with(status), "{said}");
    }
}

#[test]
fn fields_of_the_manifest_stand_above_those_of_the_preset() {
    let given =
        prompts(json!({"preset": "MiniSweAgentPlus", "system": "", "submitSentinel": "DONE", "editTool": false}));
    let preset = Preset::of(BashPreset::MiniSweAgentPlus);
    assert_eq!(
        (given.system.as_str(), given.sentinel.as_str(), given.edit_tool),
        ("", "DONE", false)
    );
    assert_eq!(given.task, preset.task);
    assert_eq!(given.output_bytes, preset.output_bytes);
    let agent = agent(json!({"preset": "MiniSweAgentPlus", "submitSentinel": "DONE"}));
    let opening = agent.opening(&task("Bug."), "").unwrap();
    assert!(
        opening[1]
            .content
            .contains("\necho DONE && git add -A && git diff --cached\n")
    );
    let submitted = |output: &str| {
        let ran = crate::episode::live::Ran {
            output: output.into(),
            exec: ran(Some(0), 0),
        };
        agent
            .observe(&TurnAction::command("c"), Some(&ran), 1)
            .unwrap()
            .submitted
    };
    assert!(submitted("DONE\ndiff --git a/a b/a\n"));
    assert!(!submitted("MINI_SWE_AGENT_FINAL_OUTPUT\n"));
}
