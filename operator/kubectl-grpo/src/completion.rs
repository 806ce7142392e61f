//! `kubectl grpo completion`: scripts with which a shell completes the plugin's commands and flags.
//!
//! kubectl asks a program `kubectl_complete-grpo` for the completions of `kubectl grpo`; the scripts complete
//! `kubectl-grpo` itself. The program is one line of shell that calls [`candidates`].

use crate::arguments::Arguments;
use crate::arguments::plan::Shell;
use clap::{Command, CommandFactory};

/// The program's own name.
const PROGRAM: &str = "kubectl-grpo";

/// The script for a shell, or the program that kubectl calls.
pub fn script(shell: Shell) -> String {
    let generator = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
        Shell::Kubectl => return format!("#!/bin/sh\nexec {PROGRAM} complete -- \"$@\"\n"),
    };
    let mut script = Vec::new();
    let mut command = Arguments::command().name(PROGRAM);
    clap_complete::generate(generator, &mut command, PROGRAM, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Completions of these words, of which the last is incomplete: one per line. The last line is kubectl's directive for
/// the shell.
pub fn candidates(words: &[String]) -> String {
    let mut command = Arguments::command();
    command.build();
    let (begun, before): (&str, &[String]) = match words.split_last() {
        Some((last, before)) => (last, before),
        None => ("", &[]),
    };
    let mut at = &command;
    for word in before {
        at = at.find_subcommand(word).unwrap_or(at);
    }
    let found = match before.last().and_then(|flag| values(at, flag)) {
        Some(values) => values,
        None if begun.starts_with('-') => flags(at),
        None => commands(at),
    };
    let fitting = found.into_iter().filter(|(word, _)| word.starts_with(begun));
    let lines: String = fitting.map(|(word, about)| format!("{word}\t{about}\n")).collect();
    // 4: do not complete file names, because something else fits.
    let directive = if lines.is_empty() { 0 } else { 4 };
    format!("{lines}:{directive}\n")
}

type Candidates = Vec<(String, String)>;

fn first_line(text: Option<&clap::builder::StyledStr>) -> String {
    text.map(|text| text.to_string().lines().next().unwrap_or_default().to_owned())
        .unwrap_or_default()
}

fn commands(at: &Command) -> Candidates {
    let shown = at.get_subcommands().filter(|command| !command.is_hide_set());
    shown
        .map(|command| (command.get_name().to_owned(), first_line(command.get_about())))
        .collect()
}

fn flags(at: &Command) -> Candidates {
    let shown = at.get_arguments().filter(|argument| !argument.is_hide_set());
    let long =
        shown.filter_map(|argument| Some((format!("--{}", argument.get_long()?), first_line(argument.get_help()))));
    long.collect()
}

/// The values of this flag, if it takes one of a few.
fn values(at: &Command, flag: &str) -> Option<Candidates> {
    let mut arguments = at.get_arguments();
    let argument = arguments.find(|argument| {
        let long = flag
            .strip_prefix("--")
            .is_some_and(|flag| argument.get_long() == Some(flag));
        let short = flag.strip_prefix('-').and_then(|flag| flag.chars().next());
        long || (flag.len() == 2 && short.is_some() && argument.get_short() == short)
    })?;
    if !argument.get_action().takes_values() {
        return None;
    }
    let values = argument.get_possible_values();
    let values = values.iter().filter(|value| !value.is_hide_set());
    let found: Candidates = values
        .map(|value| (value.get_name().to_owned(), first_line(value.get_help())))
        .collect();
    (!found.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests;
