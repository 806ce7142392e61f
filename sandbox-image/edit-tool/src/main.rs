//! `edit_via_str_replace`: the exact-match edit command that the bash loop gives the policy, as a static binary.
//!
//! It replaces a text in a file if the text occurs exactly once, shows the lines around the change, and writes the
//! whole file or nothing. Output, errors, exit codes and the resulting file are those of the script of the same name in
//! mini-swe-agent-plus (Kwai-Klear, MIT licence, <https://github.com/Kwai-Klear/mini-swe-agent-plus>, commit 0ea04fa)
//! under Python 3.11, which policies are trained to read. It contains no code of the script; `e2e/edit_tool` records
//! the script's answers, and a test compares ours with them.
//!
//! Intended differences:
//! - a file keeps its mode (the script leaves 0600, and a patch would show the lost executable bit);
//! - a file has at most [`edit::LONGEST_FILE`] bytes;
//! - only the Python encodings of [`codec::Codec`] exist.
//!
//! [`arguments`] reads the command line, [`edit`] does the work; [`text`] and [`codec`] implement Python texts.

mod arguments;
mod codec;
mod edit;
mod text;

use std::io::Write as _;
use std::process::ExitCode;

/// The answer to the caller: both streams in the encoding of the arguments, and the exit status.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answer {
    out: Vec<u8>,
    err: Vec<u8>,
    status: u8,
}

fn main() -> ExitCode {
    let given: Vec<text::Text> = std::env::args_os().skip(1).map(|it| text::Text::of(&it)).collect();
    let answer = match arguments::parse(&given) {
        Ok(arguments) => edit::edit(&arguments),
        Err(answer) => answer,
    };
    // Ignores a closed stream: the edit is done.
    let _ = std::io::stdout().write_all(&answer.out);
    let _ = std::io::stderr().write_all(&answer.err);
    ExitCode::from(answer.status)
}
