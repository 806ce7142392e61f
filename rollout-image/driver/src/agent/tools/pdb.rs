//! `pdb`: the command line of the debugger, and the reading of its output. Pure; [`super::debugger`] types and reads.

/// The prompt of pdb; in a nested debugger in brackets.
pub const PROMPT: &str = r"\(Pdb\)\)* ";
/// The longest line that a terminal takes, newline included, in bytes.
pub const LONGEST_LINE: usize = 4095;
/// The most characters of a program's output in the message of a timeout.
const SO_FAR: usize = 2000;

pub const EMPTY: &str = "Failure calling pdb:\nEmpty commands are not allowed.";
pub const FILE_REQUIRED: &str = "Failure calling pdb:\n\
    The 'file' parameter is REQUIRED with command='start'.\n\
    Examples:\n\
    \x20 - pdb(command='start', runner='python', file='src/app.py')\n\
    \x20 - pdb(command='start', runner='pytest', file='tests/test.py')";
pub const RUNNER_REQUIRED: &str = "Failure calling pdb:\n\
    The 'runner' parameter is REQUIRED with command='start'.\n\
    Please specify the runner type:\n\
    \x20 - runner='python' for regular Python scripts\n\
    \x20 - runner='pytest' for pytest tests\n\
    Examples:\n\
    \x20 - pdb(command='start', runner='python', file='src/app.py')\n\
    \x20 - pdb(command='start', runner='pytest', file='tests/test.py')";
pub const NOT_RUNNING: &str = "Failure calling pdb:\n\
    PDB session is not running. Please start it first using command='start'.\n\
    Examples:\n\
    \x20 - pdb(command='start', runner='python', file='app.py')\n\
    \x20 - pdb(command='start', runner='pytest', file='tests/test.py')";
pub const ONLY_THE_FIRST: &str = "Multiple commands are not supported. Only the first command will be executed.";
/// The original promises a restart after a rewrite, but leaves the old code running.
pub const RESTARTED: &str = "The code was rewritten: the debugging session was restarted.";
/// The message of pdb for a script that ended without a stop.
pub const FINISHED: &str = "The program finished and will be restarted";
const EXITED: &str = "The program exited via sys.exit().";
/// The answers of pdb to a breakpoint after the end of a file, or on a blank line or comment.
const NOWHERE: [&str; 3] = ["End of file", "Blank or comment", "*** Blank or comment"];

/// The command line that debugs `file`, or the error in the call.
pub fn entry(runner: Option<&str>, file: Option<&str>) -> Result<String, String> {
    let given = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
    let file = given(file).ok_or(FILE_REQUIRED)?;
    let runner = given(runner).ok_or(RUNNER_REQUIRED)?;
    match runner.to_lowercase().as_str() {
        "python" => Ok(format!("python -m pdb {file}")),
        "pytest" if file.contains("::") => Ok(format!("python -m pytest -sq {file} --trace  --tb=short")),
        "pytest" => Ok(format!("python -m pdb -m pytest -sq {file}")),
        _ => Err(format!(
            "Failure calling pdb:\nInvalid runner '{runner}'. Runner must be 'python' or 'pytest'."
        )),
    }
}

pub fn failed_to_start(entry: &str, output: &str) -> String {
    format!("Failed to start PDB session with '{entry}':\n{output}")
}

/// The command that is executed, and whether others follow that are not. A print command may contain semicolons and
/// newlines.
pub fn first_of(command: &str) -> (&str, bool) {
    let word = command.split_whitespace().next().unwrap_or_default();
    if ["p", "pp"].contains(&word) || command.starts_with("print(") {
        return (command, false);
    }
    match command.split_once(['\n', ';']) {
        Some((first, _)) => (first.trim(), true),
        None => (command, false),
    }
}

/// The error for a command with a line that no terminal takes.
pub fn too_long(command: &str) -> Option<String> {
    let longest = command.split('\n').map(str::len).max().unwrap_or_default();
    (longest >= LONGEST_LINE).then(|| {
        format!(
            "Failure calling pdb:\nThe command has a line of {longest} bytes, and a terminal takes at most {} bytes a \
             line. Use a shorter command.",
            LONGEST_LINE - 1
        )
    })
}

/// The output of pdb for the policy, without prompts.
pub fn spoken(output: &str) -> String {
    output.replace("(Pdb)", "").trim().to_owned()
}

/// The error in a breakpoint's place, in pdb's words.
pub fn nowhere(output: &str) -> Option<String> {
    NOWHERE
        .contains(&output)
        .then(|| format!("Invalid line number: {output}."))
}

/// The original's message for a program that does not return to the prompt.
pub fn timed_out(command: &str, seconds: u64, so_far: &str) -> String {
    let cut = so_far.char_indices().nth_back(SO_FAR - 1).map_or(0, |(at, _)| at);
    let so_far = quoted(&so_far[cut..]);
    let message = format!("Shell[pdb]: Read timeout after {seconds} secs. Read so far: {so_far}");
    format!(
        "The command `{command}` has timed out. TimeoutError({})",
        quoted(&message)
    )
}

/// Quotes a text of printable characters, newlines and tabs like Python's `repr`.
fn quoted(text: &str) -> String {
    let mark = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut out = String::from(mark);
    for char in text.chars() {
        match char {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            char if char == mark => out.extend(['\\', char]),
            char if char.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(char))),
            char => out.push(char),
        }
    }
    out.push(mark);
    out
}

/// The file of the current frame, from the output of `where`.
pub fn frame(output: &str) -> Option<String> {
    let line = output.lines().find_map(|line| line.strip_prefix("> "))?;
    line.split('(').next().map(str::to_owned)
}

/// A listing with its first line indented like the second: trimming the output removed its first blanks.
pub fn indented(list: &str) -> String {
    let blanks = |line: &str| {
        let count = line.chars().take_while(|char| char.is_whitespace()).count();
        line.chars()
            .nth(count)
            .is_some_and(|char| char.is_ascii_digit())
            .then_some(count)
    };
    let mut lines = list.lines();
    match (lines.next().and_then(blanks), lines.next().and_then(blanks)) {
        (Some(first), Some(second)) if first < second => format!("{}{list}", " ".repeat(second - first)),
        _ => list.to_owned(),
    }
}

/// Output in which the message that the program has exited is replaced by one for the policy.
pub fn exited(output: &str) -> String {
    let Some(at) = output.rfind(EXITED) else {
        return output.to_owned();
    };
    let rest = output[at..].split_once('\n').map_or("", |(_, rest)| rest);
    format!(
        "{}\nReached the end of the program. Restarting the debugging session.\n{rest}",
        &output[..at]
    )
}

#[cfg(test)]
mod tests;
