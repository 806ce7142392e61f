use super::*;
use std::time::Duration;

fn limits() -> AgentLimits {
    AgentLimits {
        turns: 40,
        command_timeout: Duration::from_secs(90),
        episode_timeout: Duration::from_secs(1800),
        context_tokens: 32_768,
        prompt_tokens: None,
        episode_tokens: None,
        output_bytes: 1 << 20,
    }
}

fn cli(bare: bool) -> CliAgent {
    serde_json::from_value(serde_json::json!({"preset": "QwenCode", "image": "agent:1", "bare": bare})).unwrap()
}

fn command(preset: CliPreset, bare: bool, system: Option<&str>) -> CommandLine {
    let words = Words {
        system,
        prompt: "Fix it.\n",
    };
    command_line(preset, &cli(bare), words, &limits(), 4096)
}

fn env(command: &CommandLine) -> Vec<(&str, &str)> {
    let variables = command.env.iter();
    variables.map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

#[test]
fn bare_qwen_code_has_the_smallest_prompt_and_reads_its_task_from_standard_input() {
    let command = command(CliPreset::QwenCode, true, Some("You fix bugs."));
    assert_eq!(
        command.argv,
        [
            "/opt/agent/bin/node",
            "--expose-gc",
            "/opt/agent/qwen/cli.js",
            "--auth-type",
            "openai",
            "-y",
            "--bare",
            "--system-prompt=You fix bugs.",
            "--exclude-tools",
            "get_goal",
            "update_goal",
            "notebook_edit",
            "--output-format",
            "stream-json",
            "--max-session-turns",
            "40",
        ]
    );
    assert_eq!(
        env(&command),
        [
            ("QWEN_HOME", "/tmp/grpo-agent"),
            ("QWEN_CODE_SYSTEM_SETTINGS_PATH", "/opt/agent/qwen/settings.json"),
            ("QWEN_CODE_MAX_OUTPUT_TOKENS", "4096"),
            ("QWEN_USAGE_STATISTICS_ENABLED", "false"),
            ("QWEN_CODE_SUPPRESS_YOLO_WARNING", "1"),
            ("QWEN_CODE_DISABLE_PRECONNECT", "1"),
            ("NO_BROWSER", "1"),
        ]
    );
    assert_eq!(command.stdin, b"Fix it.\n");
}

#[test]
fn qwen_code_as_it_is_keeps_its_tools_and_its_system_text() {
    assert_eq!(
        command(CliPreset::QwenCode, false, None).argv[3..],
        [
            "--auth-type",
            "openai",
            "-y",
            "--output-format",
            "stream-json",
            "--max-session-turns",
            "40",
        ]
    );
}

#[test]
fn mini_swe_agent_is_told_its_class_and_limits_and_keeps_its_files_out_of_the_repository() {
    let text = command(CliPreset::MiniSweAgent, false, None);
    let begin = ["/opt/agent/bin/python3", "-I", "-B", "/opt/agent/mini/run.py"];
    let limits = ["--turns", "40", "--command-timeout", "90"];
    assert_eq!(text.argv, [&begin[..], &["text"], &limits].concat());
    let expected = [
        ("MSWEA_GLOBAL_CONFIG_DIR", "/tmp/grpo-agent"),
        ("MSWEA_SILENT_STARTUP", "1"),
    ];
    assert_eq!(env(&text), expected);
    let tools = command(CliPreset::MiniSweAgentTools, false, Some("You fix bugs."));
    assert_eq!(
        tools.argv,
        [&begin[..], &["tools"], &limits, &["--system=You fix bugs."]].concat()
    );
    assert_eq!(tools.stdin, b"Fix it.\n");
}

#[test]
fn a_system_text_that_begins_with_a_dash_is_no_option() {
    for preset in [
        CliPreset::QwenCode,
        CliPreset::MiniSweAgent,
        CliPreset::MiniSweAgentTools,
    ] {
        let argv = command(preset, true, Some("-h --bare")).argv;
        let holders = argv.iter().filter(|argument| argument.ends_with("=-h --bare"));
        assert_eq!(holders.count(), 1, "{argv:?}");
    }
}

#[test]
fn no_prompt_is_an_argument() {
    for preset in [
        CliPreset::QwenCode,
        CliPreset::MiniSweAgent,
        CliPreset::MiniSweAgentTools,
    ] {
        let command = command(preset, true, None);
        assert!(command.argv.iter().all(|argument| !argument.contains("Fix it.")));
    }
}
