//! Decodes the bodies of clients.

use super::*;

fn system(text: &str) -> ChatMessage {
    ChatMessage::new(Role::System, text)
}

fn user(text: &str) -> ChatMessage {
    ChatMessage::new(Role::User, text)
}

fn assistant(reasoning: &str, content: &str, calls: &[(&str, &str, &str)]) -> ChatMessage {
    let call = |(id, name, arguments): &(&str, &str, &str)| ToolCall {
        id: (*id).into(),
        name: (*name).into(),
        arguments: (*arguments).into(),
    };
    ChatMessage {
        reasoning: Some(reasoning.to_owned()).filter(|text| !text.is_empty()),
        tool_calls: calls.iter().map(call).collect(),
        ..ChatMessage::new(Role::Assistant, content)
    }
}

fn overruled(settings: &[(&str, &str)]) -> Vec<(String, String)> {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    settings.iter().map(own).collect()
}

#[test]
fn a_body_of_qwen_code_is_read() {
    let request = Api::ChatCompletions.decode(bodies::QWEN_CODE).unwrap();
    assert_eq!(
        request.messages,
        [
            system("You fix bugs.\n\nGit: branch main, clean."),
            user("Today is Monday, 23 November 2026. My operating system is: linux\nFix parse() in lib/read.py."),
            assistant(
                "Let me look at the file first.",
                "",
                &[
                    (
                        "call_a1_0",
                        "run_shell_command",
                        r#"{"command":"cat lib/read.py","is_background":false}"#
                    ),
                    (
                        "call_a1_1",
                        "read_file",
                        r#"{"10":1,"absolute_path":"/testbed/lib/read.py","limit":12345678901234567000}"#
                    ),
                ]
            ),
            ChatMessage::tool(
                "call_a1_0",
                "Command: cat lib/read.py\nOutput: def parse(): …\u{fffd}\nExit Code: 0"
            ),
            ChatMessage::tool("call_a1_1", "def parse(): …"),
        ]
    );
    let tools = concat!(
        r#"[{"type":"function","function":{"name":"run_shell_command","description":"Runs a command.","parameters":{"type":"object","properties":{"command":{"type":"string"},"is_background":{"type":"boolean"}},"required":["command"]}}},"#,
        r#"{"type":"function","function":{"name":"read_file","description":"Reads a file.","parameters":{"type":"object","properties":{"absolute_path":{"type":"string"},"limit":{"type":"number"}}}}}]"#
    );
    assert_eq!(request.tools, tools);
    assert_eq!(request.max_tokens, Some(32000));
    assert!(request.stream && request.include_usage);
    assert_eq!(request.model, "policy");
    assert!(request.overruled.is_empty());
}

#[test]
fn bodies_of_mini_swe_agent_are_read() {
    let request = Api::ChatCompletions.decode(bodies::MINI_SWE_AGENT).unwrap();
    assert_eq!(
        request.messages,
        [
            system("You are a helpful assistant."),
            user("Fix the bug."),
            assistant(
                "Where am I?",
                "I list the files.",
                &[("call_b2_0", "bash", r#"{"command":  "ls -la"}"#)]
            ),
            ChatMessage::tool("call_b2_0", "<returncode>0</returncode>\n<output>\nlib\n</output>"),
        ]
    );
    assert!(
        request
            .tools
            .starts_with(r#"[{"type": "function", "function": {"name": "bash", "#)
    );
    assert!(!request.stream && !request.include_usage);
    assert_eq!((request.max_tokens, request.overruled), (None, Vec::new()));

    let request = Api::ChatCompletions.decode(bodies::MINI_SWE_AGENT_TEXT).unwrap();
    let texts = [
        "Answer with one bash block.",
        "Fix the bug.",
        "Your last answer had no block.",
    ];
    assert_eq!(request.messages, [system(texts[0]), user(texts[1]), user(texts[2])]);
    assert_eq!(request.tools, "");
}

#[test]
fn a_body_of_codex_is_read() {
    let request = Api::Responses.decode(bodies::CODEX).unwrap();
    assert_eq!(
        request.messages,
        [
            system("You are Codex."),
            system("<permissions instructions>Never ask.</permissions instructions>"),
            user("<environment_context><cwd>/testbed</cwd></environment_context>\nFix the bug."),
            assistant(
                "I need the tree.",
                "I look around.",
                &[
                    ("call_c3_0", "exec_command", r#"{"cmd":"ls","yield_time_ms":1000}"#),
                    ("call_c3_1", "exec_command", r#"{"cmd":"git log"}"#),
                ]
            ),
            ChatMessage::tool("call_c3_0", "Chunk ID: 1\nOutput:\nlib\n"),
            ChatMessage::tool("call_c3_1", "commit 1\ncommit 2"),
            assistant("", "", &[("call_c4_0", "update_plan", "{}")]),
            ChatMessage::tool("call_c4_0", "Plan updated"),
        ]
    );
    let tools = concat!(
        r#"[{"type":"function","function":{"name":"exec_command","description":"Runs a command.","strict":false,"parameters":{"type":"object","properties":{"cmd":{"type":"string"},"yield_time_ms":{"type":"number"}},"required":["cmd"],"additionalProperties":false}}},"#,
        r#"{"type":"function","function":{"name":"update_plan","description":"Updates the plan.","strict":false,"parameters":{"type":"object","properties":{}}}}]"#
    );
    assert_eq!(request.tools, tools);
    assert_eq!(
        request.overruled,
        overruled(&[
            ("parallel_tool_calls", "false"),
            ("reasoning", r#"{"effort":"medium","summary":"auto"}"#),
            (
                "tools[2]",
                r#"{"type":"custom","name":"apply_patch","description":"Edits files.","format":{"type":"grammar","syntax":"lark","definition":"start: x"}}"#
            ),
            ("tools[3]", r#"{"type":"web_search","external_web_access":false}"#),
        ])
    );
    assert!(request.stream && request.include_usage);
}

#[test]
fn a_body_of_claude_code_is_read() {
    let request = Api::Messages.decode(bodies::CLAUDE).unwrap();
    assert_eq!(
        request.messages,
        [
            system("You are Claude Code.\nBe brief."),
            user("<system-reminder>\nToday's date is 2026-11-23.\n</system-reminder>\nFix the bug."),
            assistant(
                "I need the tree.",
                "I look around.",
                &[
                    ("call_d4_0", "Bash", r#"{"command":"ls","timeout":1000.0,"10":1}"#),
                    ("call_d4_1", "Read", "{}"),
                ]
            ),
            ChatMessage::tool("call_d4_0", "lib"),
            ChatMessage::tool("call_d4_1", "def parse(): …\nend"),
            user("<system-reminder>\nKeep your list of tasks.\n</system-reminder>"),
            assistant("", "Done.", &[]),
            user("Go on.\n"),
        ]
    );
    let tools = concat!(
        r#"[{"type":"function","function":{"name":"Bash","description":"Runs a command.","parameters":{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":{"command":{"type":"string"},"timeout":{"type":"number"}},"required":["command"]}}},"#,
        r#"{"type":"function","function":{"name":"Read","description":"Reads a file.","parameters":{"type":"object","properties":{}}}}]"#
    );
    assert_eq!(request.tools, tools);
    assert_eq!(
        request.overruled,
        overruled(&[
            ("thinking", r#"{"budget_tokens":31999,"type":"enabled"}"#),
            (
                "tools[2]",
                r#"{"type":"web_search_20250305","name":"web_search","max_uses":8}"#
            ),
        ])
    );
    assert_eq!(request.max_tokens, Some(32000));
}

#[test]
fn a_body_of_gemini_cli_is_read() {
    let mut request = Api::GenerateContent.decode(bodies::GEMINI_CLI).unwrap();
    let method = ModelMethod::of("policy:streamGenerateContent", Some("alt=sse")).unwrap();
    method.apply(&mut request).unwrap();
    assert_eq!(
        request.messages,
        [
            system("You are Gemini CLI."),
            user("<session_context>\nToday's date is Monday.\n</session_context>\nFix the bug."),
            assistant(
                "I need the tree.",
                "I look around.",
                &[
                    ("call_0_0", "run_shell_command", r#"{"10":1,"command":"ls"}"#),
                    ("call_0_1", "read_file", r#"{"file_path":"/testbed/a.png"}"#),
                ]
            ),
            ChatMessage::tool("call_0_0", "Output: lib"),
            ChatMessage::tool(
                "call_0_1",
                "Binary content provided (1 item(s)).\n[inlineData left out: the model reads text only]"
            ),
            assistant("", "", &[("call_1_0", "read_file", "{}")]),
            ChatMessage::tool("call_1_0", "params must have required property 'file_path'"),
        ]
    );
    let tools = concat!(
        r#"[{"type":"function","function":{"name":"run_shell_command","description":"Runs a command.","parameters":{"type":"object","properties":{"command":{"type":"string"}},"required":["command"]}}},"#,
        r#"{"type":"function","function":{"name":"read_file","description":"Reads a file.","parameters":{"type":"object","properties":{"type":{"type":"string"},"lines":{"type":"array","items":{"type":"number"}}},"example":{"type":"STRING"}}}}]"#
    );
    assert_eq!(request.tools, tools);
    assert_eq!((request.max_tokens, request.model.as_str()), (Some(32000), "policy"));
    assert!(request.stream && !request.array);
    assert_eq!(
        request.overruled,
        overruled(&[
            ("generationConfig.temperature", "1"),
            ("generationConfig.topP", "0.95"),
            ("generationConfig.topK", "64"),
            (
                "generationConfig.thinkingConfig",
                r#"{"includeThoughts":true,"thinkingBudget":8192}"#
            ),
            ("tools[1]", r#"{"googleSearch":{}}"#),
        ])
    );
}
