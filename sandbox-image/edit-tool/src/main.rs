//! `edit_via_str_replace`: the exact-match edit command that the bash loop gives the policy, as a static binary.
//!
//! It replaces a text in a file if the text occurs exactly once, shows the lines around the change, and writes the file
//! as a whole or not at all. Output, errors, exit codes and what becomes of the file are those of the script of the
//! same name in mini-swe-agent-plus (Kwai-Klear, MIT licence,
//! <https://github.com/Kwai-Klear/mini-swe-agent-plus>, commit 0ea04fa) under Python 3.11, which policies are
//! trained to read. Nothing here is its code; `e2e/edit_tool` records its answers, and a test compares ours with them.
//!
//! What differs on purpose:
//! - a file keeps its mode (the script leaves 0600, and a patch would show the lost executable bit);
//! - a file has at most [`edit::LONGEST_FILE`] bytes;
//! - of Python's encodings there are those of [`codec::Codec`].
//!
//! [`arguments`] reads the command line, [`edit`] does the work; [`text`] and [`codec`] say what a Python text is.

mod arguments;
mod codec;
mod edit;
mod text;

use std::io::Write as _;
use std::process::ExitCode;

/// What the caller gets: both streams in the encoding of the arguments, and the exit status.
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
    // A reader that went away changes nothing: the edit is done.
    let _ = std::io::stdout().write_all(&answer.out);
    let _ = std::io::stderr().write_all(&answer.err);
    ExitCode::from(answer.status)
}
