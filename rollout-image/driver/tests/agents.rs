//! Published agents, called by the presets' commands: in a root with bash and busybox and without a C library, with the
//! files of their image read-only at `/opt/agent`, against a simulated endpoint. `make check-agents` makes the files
//! (`e2e/agents/check.sh`).

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use grpo_crds::agent::{CliAgent, CliPreset};
use grpo_driver::agent::cli::presets::{Words, command_line};
use grpo_driver::agent::limits::AgentLimits;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncWriteExt;

const PROMPT: &str = "The greeting is wrong. Correct it.";
const SYSTEM: &str = "You {{ repair }} greetings.";
/// Mounts the agent and a container's usual mounts, and runs the rest of the arguments in the repository.
const IN_ROOT: &str = r#"
set -e
root=$0
mount --bind "$1" "$root/opt/agent"
mount -o remount,bind,ro "$root/opt/agent"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
shift
exec chroot "$root" /bin/bash -c 'cd /repo && exec "$@"' in-root "$@"
"#;

/// Answers with the next message of a script, and keeps the requests.
#[derive(Default)]
struct Played {
    script: Mutex<Vec<Value>>,
    asked: Mutex<Vec<Value>>,
}

async fn answer(State(played): State<Arc<Played>>, Json(body): Json<Value>) -> Response {
    played.asked.lock().unwrap().push(body.clone());
    let Some(message) = played.script.lock().unwrap().pop() else {
        return (axum::http::StatusCode::NOT_FOUND, "the episode is over").into_response();
    };
    let finish = match message["tool_calls"].is_null() {
        true => "stop",
        false => "tool_calls",
    };
    let with = |kind: &str, object: &str, finish: Value| {
        json!({"id": "answer", "object": object, "created": 1, "model": "policy",
               "choices": [{"index": 0, kind: message, "finish_reason": finish}]})
    };
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15});
    if body["stream"] != json!(true) {
        let mut whole = with("message", "chat.completion", json!(finish));
        whole["usage"] = usage;
        return Json(whole).into_response();
    }
    let mut chunks = vec![with("delta", "chat.completion.chunk", Value::Null)];
    let mut end = with("delta", "chat.completion.chunk", json!(finish));
    end["choices"][0]["delta"] = json!({});
    let mut told = end.clone();
    (told["choices"], told["usage"]) = (json!([]), usage);
    chunks.extend([end, told]);
    let mut events: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    events.push_str("data: [DONE]\n\n");
    ([(CONTENT_TYPE, "text/event-stream")], events).into_response()
}

fn call(tool: &str, arguments: &Value) -> Value {
    let function = json!({"name": tool, "arguments": arguments.to_string()});
    json!({"role": "assistant", "content": null, "tool_calls": [{"index": 0, "id": "call-1", "type": "function", "function": function}]})
}

fn said(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

/// The result of an agent's work.
struct Worked {
    code: Option<i32>,
    output: String,
    asked: Vec<Value>,
    /// Names of the repository's files.
    files: Vec<String>,
    greeting: String,
}

impl Worked {
    fn message(&self, request: usize, message: usize) -> String {
        // A list of text parts, or a text.
        let content = &self.asked[request]["messages"][message]["content"];
        let parts = content.as_array().into_iter().flatten();
        let texts: Vec<&str> = parts.filter_map(|part| part["text"].as_str()).collect();
        content.as_str().map_or_else(|| texts.join(""), str::to_owned)
    }

    fn last_message(&self, request: usize) -> String {
        self.message(request, self.asked[request]["messages"].as_array().unwrap().len() - 1)
    }

    fn tools(&self) -> Vec<&str> {
        let tools = self.asked[0]["tools"].as_array().into_iter().flatten();
        tools.map(|tool| tool["function"]["name"].as_str().unwrap()).collect()
    }
}

fn files() -> PathBuf {
    std::env::var_os("GRPO_AGENT_FILES")
        .expect("GRPO_AGENT_FILES: use make check-agents")
        .into()
}

/// A root with a shell and a one-file repository.
fn root() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for folder in ["bin", "dev", "opt/agent", "proc", "repo", "root", "tmp"] {
        std::fs::create_dir_all(root.path().join(folder)).unwrap();
    }
    for program in ["bash", "busybox"] {
        std::fs::copy(
            files().join("static").join(program),
            root.path().join("bin").join(program),
        )
        .unwrap();
    }
    for applet in ["sh", "cat", "ls", "uname"] {
        std::os::unix::fs::symlink("busybox", root.path().join("bin").join(applet)).unwrap();
    }
    std::fs::write(root.path().join("repo/greeting"), "Good nigth\n").unwrap();
    root
}

async fn work(preset: CliPreset, image: &str, mut script: Vec<Value>) -> Worked {
    script.reverse();
    let played = Arc::new(Played {
        script: Mutex::new(script),
        ..Played::default()
    });
    let router = Router::new().route("/v1/chat/completions", post(answer));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(axum::serve(listener, router.with_state(played.clone())).into_future());
    let spec = json!({"preset": preset, "image": "i", "bare": preset == CliPreset::QwenCode});
    let cli: CliAgent = serde_json::from_value(spec).unwrap();
    let words = Words {
        system: Some(SYSTEM),
        prompt: PROMPT,
    };
    let limits = AgentLimits {
        turns: 8,
        command_timeout: Duration::from_secs(20),
        episode_timeout: Duration::from_secs(120),
        context_tokens: 32_768,
        prompt_tokens: None,
        episode_tokens: None,
        output_bytes: 1 << 20,
    };
    let command = command_line(preset, &cli, words, &limits, 777);
    let root = root();
    let mut child = tokio::process::Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", IN_ROOT])
        .arg(root.path())
        .arg(files().join(image).join("agent"))
        .args(&command.argv)
        .env_clear()
        .env("HOME", "/root")
        .env("PATH", "/bin:/usr/bin:/usr/sbin:/sbin")
        // A task's image may name libraries of its own.
        .env("LD_LIBRARY_PATH", "/repo")
        .env("OPENAI_BASE_URL", format!("http://{address}/v1"))
        .env("OPENAI_API_KEY", "nothing")
        .env("OPENAI_MODEL", "policy")
        .envs(command.env)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&command.stdin).await.unwrap();
    let ended = tokio::time::timeout(limits.episode_timeout, child.wait_with_output());
    let ended = ended.await.expect("the agent ends within the episode's time").unwrap();
    server.abort();
    let asked = std::mem::take(&mut *played.asked.lock().unwrap());
    Worked {
        code: ended.status.code(),
        output: [ended.stdout, ended.stderr]
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .concat(),
        asked,
        files: names(&root.path().join("repo")),
        greeting: std::fs::read_to_string(root.path().join("repo/greeting")).unwrap(),
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

const REPAIR: &str = "echo Good night > greeting && cat greeting && pwd";

/// Holds for every agent that was told to repair the greeting and then to stop.
fn assert_repaired(worked: &Worked) {
    assert_eq!(worked.code, Some(0), "{}", worked.output);
    assert_eq!(worked.greeting, "Good night\n", "{}", worked.output);
    assert_eq!(
        worked.files,
        ["greeting"],
        "the repository has nothing of the agent's own"
    );
    assert_eq!(worked.asked.len(), 2);
    assert!(worked.message(0, 0).starts_with(SYSTEM), "{}", worked.message(0, 0));
    let observation = worked.last_message(1);
    for words in ["Good night", "/repo"] {
        assert!(observation.contains(words), "{observation}");
    }
}

#[tokio::test]
#[ignore = "make check-agents"]
async fn qwen_code_repairs_a_repository_and_sends_the_smallest_prompt() {
    let arguments = json!({"command": REPAIR, "is_background": false});
    let script = vec![call("run_shell_command", &arguments), said("It is correct now.")];
    let worked = work(CliPreset::QwenCode, "qwen-code", script).await;
    assert_repaired(&worked);
    assert_eq!(worked.tools(), ["edit", "read_file", "run_shell_command"]);
    assert_eq!(
        (&worked.asked[0]["stream"], &worked.asked[0]["max_tokens"]),
        (&json!(true), &json!(777))
    );
    assert!(worked.last_message(0).contains(PROMPT), "{}", worked.last_message(0));
    assert!(worked.output.contains("\"type\":\"result\""), "{}", worked.output);
    let bytes = worked.asked[0].to_string().len();
    assert!(bytes < 16_000, "the first request has {bytes} bytes");
}

#[tokio::test]
#[ignore = "make check-agents"]
async fn mini_swe_agent_repairs_a_repository_by_bash_blocks() {
    let block = |command: &str| said(&format!("THOUGHT: as told.\n\n```mswea_bash_command\n{command}\n```"));
    let script = vec![block(REPAIR), block("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")];
    let worked = work(CliPreset::MiniSweAgent, "mini-swe-agent", script).await;
    assert_repaired(&worked);
    assert_eq!(worked.tools(), [""; 0]);
    assert!(worked.last_message(0).contains(PROMPT), "{}", worked.last_message(0));
    assert!(
        worked.output.contains("\"exit_status\": \"Submitted\""),
        "{}",
        worked.output
    );
}

#[tokio::test]
#[ignore = "make check-agents"]
async fn mini_swe_agent_repairs_a_repository_by_its_tool() {
    let bash = |command: &str| call("bash", &json!({"command": command}));
    let script = vec![bash(REPAIR), bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")];
    let worked = work(CliPreset::MiniSweAgentTools, "mini-swe-agent", script).await;
    assert_repaired(&worked);
    assert_eq!(worked.tools(), ["bash"]);
    let echoed = &worked.asked[1]["messages"][2]["tool_calls"][0];
    assert_eq!(
        (&echoed["id"], &echoed["function"]["name"]),
        (&json!("call-1"), &json!("bash"))
    );
}

#[tokio::test]
#[ignore = "make check-agents"]
async fn agents_end_at_once_when_the_episode_is_over() {
    for (preset, image) in [
        (CliPreset::QwenCode, "qwen-code"),
        (CliPreset::MiniSweAgent, "mini-swe-agent"),
        (CliPreset::MiniSweAgentTools, "mini-swe-agent"),
    ] {
        let worked = work(preset, image, Vec::new()).await;
        assert_eq!(worked.asked.len(), 1, "{preset:?}: {}", worked.output);
        assert_eq!(worked.code, Some(1), "{preset:?}: {}", worked.output);
    }
}
