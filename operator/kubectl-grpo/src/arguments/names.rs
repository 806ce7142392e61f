//! Parses names and durations from the command line.

use grpo_records::paths;
use jiff::SignedDuration;
use std::time::Duration;

/// The name of a GrpoRun. Accepts `grun/demo` and similar forms, as kubectl does.
pub fn run_name(text: &str) -> Result<String, String> {
    let name = match text.split_once('/') {
        None => text,
        Some((kind, name)) if is_kind(kind) => name,
        Some((kind, _)) => return Err(format!("{kind} is no GrpoRun; give the run's name, or grun/NAME")),
    };
    let inside = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-' || c == b'.';
    let outside = |c: &u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let bytes = name.as_bytes();
    match name.len() <= 253
        && bytes.first().is_some_and(outside)
        && bytes.last().is_some_and(outside)
        && bytes.iter().copied().all(inside)
    {
        true => Ok(name.to_owned()),
        false => Err(
            "a run's name has lower-case letters, digits, '-' and '.', and begins and ends with a letter or digit"
                .into(),
        ),
    }
}

fn is_kind(text: &str) -> bool {
    matches!(
        text,
        "grun" | "grporun" | "grporuns" | "grporun.grpo.dev" | "grporuns.grpo.dev"
    )
}

/// The name of a set or of a version.
pub fn set_name(text: &str) -> Result<String, String> {
    match paths::is_plain_name(text) {
        true => Ok(text.to_owned()),
        false => Err("it has letters, digits, '.', '_' and '-' only".into()),
    }
}

/// A duration that is not zero.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "a duration looks like 90s, 30m or 1h30m".to_owned();
    let duration: SignedDuration = text.parse().map_err(|_| wrong())?;
    let duration = Duration::try_from(duration).map_err(|_| wrong())?;
    match duration.is_zero() {
        false => Ok(duration),
        true => Err(wrong()),
    }
}
