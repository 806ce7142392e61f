//! A scripted policy. It reads a rendered prompt: the task, the agent's tools or text format, and the turns before. It
//! inspects the repository, fixes the bug, tests the fix and finishes.
//!
//! Its answers vary by task in the points that agents handle differently: several calls in one answer, reasoning, an
//! edit with the agent's own tool, numbers and characters that a client rewrites, an answer that breaks the agent's
//! format.

use super::tasks::{BUGS, Bug};
use serde_json::{Value, json};

/// Tools that run a command, by the agents' names for them, with the name of the command's argument.
const SHELLS: [(&str, &str); 5] = [
    ("exec_command", "cmd"),
    ("Bash", "command"),
    ("bash", "command"),
    ("run_shell_command", "command"),
    ("shell", "command"),
];
const EDITS: [&str; 3] = ["Edit", "edit", "replace"];
const READS: [&str; 3] = ["Read", "read", "read_file"];
/// mini-swe-agent ends when a command's output begins with this.
const SENTINEL: &str = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT";
const ASSISTANT: &str = "<|im_start|>assistant\n";

pub fn answer(prompt: &str, _seed: u64) -> String {
    let Some((number, bug)) = BUGS.iter().enumerate().find(|(_, bug)| prompt.contains(&bug.ticket())) else {
        return "A wrong line".to_owned();
    };
    let tools = tools(prompt);
    let said = match tools.is_empty() {
        false => by_tools(prompt, &tools, number, bug),
        true if prompt.contains("mswea_bash_command") => by_blocks(prompt, number, bug),
        true if prompt.contains(">>>>>>> REPLACE") => by_edits(prompt, number, bug),
        // A request beside the task, such as one for a title of the conversation.
        true => "A wrong line".to_owned(),
    };
    match number % 4 {
        3 => format!("<think>\nThe line of {} is wrong.\n</think>\n\n{said}", bug.module),
        _ => said,
    }
}

/// The number of the policy's earlier answers.
fn answers(prompt: &str) -> usize {
    prompt.matches(ASSISTANT).count() - 1
}

/// Commands in order; the last one tests the fix.
fn command(bug: &Bug, number: usize, step: usize) -> Option<String> {
    let file = bug.file();
    let looks = 1 + number % 3;
    match step {
        0 => Some(format!("cat {file} # größer als eine Zeile?")),
        _ if step < looks => Some(format!("git log --oneline | head -n {step}; ls")),
        _ if step == looks => Some(format!("sed -i \"2c\\\\{}\" {file}", bug.line(bug.right))),
        _ if step == looks + 1 => Some(format!("python3 -B {file} && cat {file}")),
        _ => None,
    }
}

fn by_tools(prompt: &str, tools: &[Value], number: usize, bug: &Bug) -> String {
    let named = |names: &[&str]| {
        let mut found = names.iter().filter_map(|name| tool(tools, name));
        found.next()
    };
    let shell = SHELLS
        .iter()
        .find_map(|(name, argument)| Some((tool(tools, name)?, *argument)));
    let (shell, argument) = shell.expect("the agent offers a tool that runs commands");
    let run = |command: String| {
        let mut arguments = required(shell);
        if properties(shell)
            .get("timeout")
            .is_some_and(|timeout| timeout["type"] == "number")
        {
            arguments.insert("timeout".into(), json!(60000.0));
        }
        arguments.insert(argument.into(), json!(command));
        call(shell, &Value::Object(arguments), number)
    };
    let step = answers(prompt);
    let Some(command) = command(bug, number, step) else {
        return match tool(tools, "complete") {
            Some(complete) => call(complete, &json!({}), number),
            None if prompt.contains(SENTINEL) => run(format!("echo {SENTINEL}")),
            None => format!("Corrected `{}`.", bug.file()),
        };
    };
    let edits = number % 2 == 1;
    let is_look = step == 0;
    let is_mend = command.starts_with("sed");
    match (named(&EDITS), named(&READS)) {
        (Some(_), Some(read)) if edits && is_look => {
            let mut arguments = required(read);
            set(&mut arguments, read, "path", json!(path(prompt, bug)));
            call(read, &Value::Object(arguments), number)
        }
        (Some(edit), Some(_)) if edits && is_mend => {
            format!("That line.\n{}", call(edit, &edit_arguments(prompt, edit, bug), number))
        }
        _ if is_look && number.is_multiple_of(5) => format!("Both at once.\n{}\n{}", run("ls".into()), run(command)),
        _ => format!("Next: step {step}.\n{}", run(command)),
    }
}

fn edit_arguments(prompt: &str, edit: &Value, bug: &Bug) -> Value {
    let (old, new) = (bug.line(bug.wrong), bug.line(bug.right));
    let mut arguments = required(edit);
    set(&mut arguments, edit, "path", json!(path(prompt, bug)));
    if properties(edit).get("edits").is_some() {
        arguments.insert("edits".into(), json!([{"oldText": old, "newText": new}]));
        return Value::Object(arguments);
    }
    set(&mut arguments, edit, "old", json!(old));
    set(&mut arguments, edit, "new", json!(new));
    Value::Object(arguments)
}

/// mini-swe-agent's text format. One answer in seven has no block, and the agent drops it from its history.
fn by_blocks(prompt: &str, number: usize, bug: &Bug) -> String {
    let block = |command: &str| format!("THOUGHT: as planned.\n\n```mswea_bash_command\n{command}\n```");
    if number % 7 == 6 && answers(prompt) == 1 && !prompt.contains("Please always provide") {
        return "Let me think.".to_owned();
    }
    match command(bug, number, answers(prompt)) {
        Some(command) => block(&command),
        None => block(&format!("echo {SENTINEL}")),
    }
}

/// aider's format: names the file until its text is shown, then replaces the line. One first try in five names a line
/// that the file does not have.
fn by_edits(prompt: &str, number: usize, bug: &Bug) -> String {
    let (old, new) = (bug.line(bug.wrong), bug.line(bug.right));
    if !prompt.contains(&format!("\n{old}\n")) {
        return format!("Please add {} to the chat.", bug.file());
    }
    let old = match number.is_multiple_of(5) && !prompt.contains("failed to match") {
        true => "    return nothing of that".to_owned(),
        false => old,
    };
    format!(
        "{}\n```\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n```\n",
        bug.file()
    )
}

/// The tools of a prompt, as its template shows them.
fn tools(prompt: &str) -> Vec<Value> {
    let Some(shown) = prompt.strip_prefix("<|im_start|>system\n<tools>\n") else {
        return Vec::new();
    };
    let lines = shown.split("\n</tools>").next().unwrap().lines();
    lines
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["function"].take())
        .collect()
}

fn tool<'a>(tools: &'a [Value], name: &str) -> Option<&'a Value> {
    tools.iter().find(|tool| tool["name"] == name)
}

fn properties(tool: &Value) -> &Value {
    &tool["parameters"]["properties"]
}

/// A value for every required argument of a tool.
fn required(tool: &Value) -> serde_json::Map<String, Value> {
    let names = tool["parameters"]["required"].as_array().into_iter().flatten();
    let filled = names.filter_map(Value::as_str).map(|name| {
        let value = match properties(tool)[name]["type"].as_str() {
            Some("boolean") => json!(false),
            Some("number" | "integer") => json!(1),
            _ => json!("As planned"),
        };
        (name.to_owned(), value)
    });
    filled.collect()
}

/// Sets the argument whose name contains `part`: `file_path`, `filePath` and `path`; `old_string`, `oldString`.
fn set(arguments: &mut serde_json::Map<String, Value>, tool: &Value, part: &str, value: Value) {
    let names = properties(tool).as_object().into_iter().flatten().map(|(name, _)| name);
    let mut named = names.filter(|name| name.to_lowercase().contains(part) && !name.starts_with("replace"));
    if let Some(name) = named.next() {
        arguments.insert(name.clone(), value);
    }
}

/// The absolute path of the bug's file: every agent tells its model the working directory. gemini-cli first tells it a
/// folder of its own that has the same name.
fn path(prompt: &str, bug: &Bug) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "/_.-".contains(c);
    let parents = prompt.match_indices("/testbed").map(|(end, _)| {
        let before = &prompt[..end];
        let start = before
            .char_indices()
            .rev()
            .find(|(_, c)| !is_part(*c))
            .map_or(0, |(at, c)| at + c.len_utf8());
        &before[start..]
    });
    let mut parents = parents.filter(|parent| !parent.contains("/.gemini/"));
    let parent = parents.next().expect("the prompt names the working directory");
    format!("{parent}/testbed/{}", bug.file())
}

/// A call in Hermes' format. Every second task escapes non-ASCII characters and writes blanks as Python does.
fn call(tool: &Value, arguments: &Value, number: usize) -> String {
    let text = match number % 2 {
        0 => arguments.to_string(),
        _ => escaped(&serde_json::to_string_pretty(arguments).unwrap().replace('\n', " ")),
    };
    format!(
        "<tool_call>\n{{\"name\": {}, \"arguments\": {text}}}\n</tool_call>",
        tool["name"]
    )
}

fn escaped(text: &str) -> String {
    let one = |c: char| match c.is_ascii() {
        true => c.to_string(),
        false => c
            .encode_utf16(&mut [0; 2])
            .iter()
            .map(|unit| format!("\\u{unit:04x}"))
            .collect(),
    };
    text.chars().map(one).collect()
}
