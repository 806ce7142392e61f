//! `pdb` as a session: its input, its output, and the text for the policy.
//!
//! After each command of the policy the driver asks for the breakpoints and the current frame, as the original does. A
//! program that hangs, dies or floods the terminal is an answer for the policy; the session ends with it.

use super::bench::Bench;
use super::breakpoints::{self, Breakpoints};
use super::memory::Debugger;
use super::pdb;
use crate::episode::work::{Halt, Typed};
use grpo_sandbox_protocol::Until;

/// The output of a start; an error if it failed.
type Started = Result<String, String>;

/// One call of the tool.
pub async fn call(
    bench: &mut Bench<'_, '_>,
    command: &str,
    runner: Option<&str>,
    file: Option<&str>,
) -> Result<String, Halt> {
    if command.trim().is_empty() {
        return Ok(pdb::EMPTY.to_owned());
    }
    if command.trim().eq_ignore_ascii_case("start") {
        return match pdb::entry(runner, file) {
            Ok(entry) => start(bench, entry).await,
            Err(message) => Ok(message),
        };
    }
    let (command, others) = pdb::first_of(command);
    let Some(debugger) = &bench.memory.debugger else {
        return Ok(pdb::NOT_RUNNING.to_owned());
    };
    if command.is_empty() {
        return Ok(pdb::EMPTY.to_owned());
    }
    if let Some(message) = pdb::too_long(command) {
        return Ok(message);
    }
    let mut said = Vec::new();
    if others {
        said.push(pdb::ONLY_THE_FIRST);
    }
    if debugger.stale {
        let entry = debugger.entry.clone();
        if let Err(output) = open(bench, &entry).await? {
            return Ok(pdb::failed_to_start(&entry, &output));
        }
        said.push(pdb::RESTARTED);
        if bench.memory.debugger.is_none() {
            return Ok(pdb::NOT_RUNNING.to_owned());
        }
    }
    let before = said.iter().map(|line| format!("{line}\n")).collect::<String>();
    let output = match carried_out(bench, command).await? {
        Ok(output) => pdb::exited(&output),
        Err(output) => return Ok(format!("Invalid pdb command: {command}\n{before}{}", output.trim())),
    };
    let mut text = format!("{before}{}\n", output.trim());
    text.push_str(&surroundings(bench, command).await?);
    Ok(text)
}

/// Begins a new session, and shows the program's position.
async fn start(bench: &mut Bench<'_, '_>, entry: String) -> Result<String, Halt> {
    let output = match open(bench, &entry).await? {
        Ok(output) => output,
        Err(output) => return Ok(pdb::failed_to_start(&entry, &output)),
    };
    let mut text = format!("PDB session started with: {entry}\n{output}");
    if bench.memory.debugger.is_some() {
        update_breakpoints(bench).await?;
        text.push_str(&format!("\nBreakpoints:\n{}", bench.memory.breakpoints.text()));
        let list = interact(bench, "l .").await?;
        if !list.is_empty() {
            text.push_str(&format!(
                "\n\nContext around the current frame:\n{}",
                pdb::indented(&list)
            ));
        }
    }
    Ok(text)
}

/// The output of a command; an error if the command is refused.
async fn carried_out(bench: &mut Bench<'_, '_>, command: &str) -> Result<Result<String, String>, Halt> {
    let mut words = command.split_whitespace();
    let (verb, place) = (words.next().unwrap_or_default(), words.next());
    match (verb, place) {
        ("b" | "break", None) => {
            return Ok(Ok(format!("Breakpoints:\n{}\n", bench.memory.breakpoints.text())));
        }
        ("cl" | "clear", None) => {
            bench.memory.breakpoints = Breakpoints::default();
            let entry = bench.memory.debugger.as_ref().map(|debugger| debugger.entry.clone());
            return Ok(match open(bench, &entry.unwrap_or_default()).await? {
                Ok(_) => Ok("All breakpoints have been cleared.".to_owned()),
                Err(output) => Ok(format!("All breakpoints have been cleared.\n{output}\n\nPdb quit.")),
            });
        }
        ("b" | "break", Some(place)) => {
            // The rest is a condition.
            let place = place.split(',').next().unwrap_or_default();
            if let Some((file, line)) = place.rsplit_once(':') {
                let Ok(line) = line.parse() else {
                    return Ok(Err(format!(
                        "Invalid breakpoint format: {place}. Expected format: file.py:line_number"
                    )));
                };
                // pdb itself reports a missing file.
                if let Ok(text) = bench.read(file).await?
                    && let Some(why) = breakpoints::refusal(&text, line)
                {
                    return Ok(Err(breakpoints::refused(file, line, &why)));
                }
            }
        }
        _ => {}
    }
    let output = interact(bench, command).await?;
    if let Some(why) = pdb::nowhere(&output) {
        return Ok(Err(why));
    }
    if bench.memory.debugger.is_none() {
        return Ok(Ok(format!("Pdb command output:\n{output}\n\nPdb quit.")));
    }
    update_breakpoints(bench).await?;
    Ok(Ok(format!("Pdb command output:\n{output}")))
}

/// The text after an output: the lines after `c`, all breakpoints after a new one, and the frame if its file changed.
async fn surroundings(bench: &mut Bench<'_, '_>, command: &str) -> Result<String, Halt> {
    let Some(debugger) = &bench.memory.debugger else {
        return Ok(String::new());
    };
    let before = debugger.frame.clone();
    let frame = look_at_frame(bench).await?;
    let mut words = command.split_whitespace();
    let (verb, has_more) = (words.next().unwrap_or_default(), words.next().is_some());
    let mut text = String::new();
    let list = match bench.switches.list_after_continue && verb == "c" {
        true => interact(bench, "l .").await?,
        false => String::new(),
    };
    if verb == "b" && has_more {
        let all = interact(bench, "b").await?;
        if !all.is_empty() {
            text.push_str(&format!("\nAll breakpoints:\n{all}\n"));
        }
    }
    if let Some(frame) = frame.filter(|frame| before.as_ref() != Some(frame)) {
        text.push_str(&format!("\nCurrent frame:\n{frame}\n"));
    }
    if !list.is_empty() {
        text.push_str(&format!(
            "\nContext around the current frame:\n{}\n",
            pdb::indented(&list)
        ));
    }
    Ok(text)
}

/// Ends the running session, and begins a new one. Returns its first output, or, as an error, the output with which it
/// ended. A script that ended without a stop leaves no session.
async fn open(bench: &mut Bench<'_, '_>, entry: &str) -> Result<Started, Halt> {
    close(bench).await?;
    let session = bench.session_name();
    let argv = ["/bin/bash", "--noprofile", "--norc", "-c", entry].map(str::to_owned);
    if let Err(why) = bench.episode.begin_session(&session, argv.to_vec()).await? {
        return Ok(Err(why));
    }
    bench.memory.debugger = Some(Debugger {
        session,
        entry: entry.to_owned(),
        inputs: 0,
        frame: None,
        stale: false,
    });
    let output = read(bench, entry, "").await?;
    if bench.memory.debugger.is_none() {
        return Ok(Err(output));
    }
    if output.contains(pdb::FINISHED) {
        close(bench).await?;
        return Ok(Ok(output));
    }
    let kept = match bench.switches.keep_breakpoints {
        true => bench.memory.breakpoints.0.clone(),
        false => Vec::new(),
    };
    for one in &kept {
        interact(bench, &one.command()).await?;
    }
    look_at_frame(bench).await?;
    Ok(Ok(match kept.is_empty() {
        true => output,
        false => format!("{output}\nBreakpoints have been restored."),
    }))
}

async fn close(bench: &mut Bench<'_, '_>) -> Result<(), Halt> {
    match bench.memory.debugger.take() {
        Some(debugger) => bench.episode.end_session(&debugger.session).await,
        None => Ok(()),
    }
}

async fn update_breakpoints(bench: &mut Bench<'_, '_>) -> Result<(), Halt> {
    let listed = interact(bench, "b").await?;
    if bench.memory.debugger.is_some() {
        bench.memory.breakpoints = Breakpoints::listed(&listed);
    }
    Ok(())
}

async fn look_at_frame(bench: &mut Bench<'_, '_>) -> Result<Option<String>, Halt> {
    let frame = pdb::frame(&interact(bench, "where").await?);
    if let Some(debugger) = &mut bench.memory.debugger {
        debugger.frame.clone_from(&frame);
    }
    Ok(frame)
}

/// Types a command, and reads until pdb's next prompt.
async fn interact(bench: &mut Bench<'_, '_>, command: &str) -> Result<String, Halt> {
    match bench.memory.debugger.is_some() {
        true => read(bench, command, &format!("{command}\n")).await,
        false => Ok(String::new()),
    }
}

/// Types a text and reads. `command`: named in the message of a timeout. Closes a session that does not return to the
/// prompt in time, or whose program has ended.
async fn read(bench: &mut Bench<'_, '_>, command: &str, text: &str) -> Result<String, Halt> {
    let timeout = bench.episode.command_time(bench.turn);
    let Some(debugger) = &mut bench.memory.debugger else {
        return Ok(String::new());
    };
    debugger.inputs += 1;
    let typed = Typed {
        session: &debugger.session,
        number: debugger.inputs,
        text,
        prompt: pdb::PROMPT,
        timeout,
    };
    let reply = match bench.episode.type_into(bench.turn, typed).await? {
        Ok(reply) => reply,
        // The sandbox does not know the session any more.
        Err(why) => {
            bench.memory.debugger = None;
            return Ok(why);
        }
    };
    let output = pdb::spoken(&reply.output);
    match reply.until {
        Until::Prompt | Until::Idle => Ok(output),
        Until::Timeout => {
            close(bench).await?;
            Ok(pdb::timed_out(command, timeout.as_secs(), &output))
        }
        Until::Ended => {
            close(bench).await?;
            Ok(output)
        }
    }
}
