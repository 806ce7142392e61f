//! The format of every bench's results: rows with a figure, its value and its bar, and the machine and versions that
//! they were measured with.

pub mod harnesses;

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A figure with its bar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub figure: String,
    pub value: Option<f64>,
    pub unit: String,
    pub peer: Option<String>,
    pub peer_value: Option<f64>,
    /// A sign and a number, such as `>= 20`.
    pub bar: Option<String>,
    /// Commit and machine of a row that was merged into a file, whose rows come from several runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub commit: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub machine: String,
}

impl Row {
    /// Rounds the value to four decimal places.
    pub fn new(figure: impl Into<String>, value: Option<f64>, unit: &str, bar: Option<&str>) -> Self {
        Self {
            figure: figure.into(),
            value: value.map(|v| (v * 1e4).round() / 1e4),
            unit: unit.into(),
            peer: None,
            peer_value: None,
            bar: bar.map(str::to_owned),
            commit: String::new(),
            machine: String::new(),
        }
    }

    /// Rounds the value to four significant digits, for very small values.
    pub fn significant(figure: impl Into<String>, value: f64, unit: &str, bar: Option<&str>) -> Self {
        Self {
            value: Some(four_digits(value)),
            ..Self::new(figure, None, unit, bar)
        }
    }

    /// Adds the value of a peer, rounded to four significant digits.
    pub fn beside(mut self, peer: &str, value: f64) -> Self {
        self.peer = Some(peer.to_owned());
        self.peer_value = Some(four_digits(value));
        self
    }

    /// The part of the figure before the colon.
    fn number(&self) -> &str {
        self.figure.split(':').next().unwrap_or_default()
    }

    /// Also false if there is a bar but no value.
    pub fn meets_its_bar(&self) -> bool {
        match (self.value, self.bar.as_deref().and_then(parse_bar)) {
            (Some(value), Some((sign, bar))) => match sign {
                ">=" => value >= bar,
                "<=" => value <= bar,
                ">" => value > bar,
                _ => value == bar,
            },
            (None, Some(_)) => false,
            (_, None) => true,
        }
    }
}

fn four_digits(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

fn parse_bar(bar: &str) -> Option<(&str, f64)> {
    let (sign, number) = bar.split_once(' ')?;
    Some((sign, number.parse().ok()?))
}

/// Rows, with the commit, machine and versions that they were measured with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bench {
    /// This project's commit; a trailing `+` if files were changed.
    pub commit: String,
    /// Processor and number of cores.
    pub machine: String,
    pub versions: Vec<String>,
    pub rows: Vec<Row>,
}

impl Bench {
    pub fn of_this_machine(rows: &[Row]) -> Self {
        let mut commit = said_by("git", &["rev-parse", "--short", "HEAD"]);
        if !said_by("git", &["status", "--porcelain", "--untracked-files=no"]).is_empty() {
            commit.push('+');
        }
        let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = processors
            .lines()
            .find_map(|line| line.strip_prefix("model name"))
            .map(|rest| rest.trim_start_matches([' ', '\t', ':']));
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        Self {
            commit,
            machine: format!("{}, {cores} cores", model.unwrap_or("unknown processor")),
            versions: vec![
                format!("grpo-operator {}", env!("CARGO_PKG_VERSION")),
                said_by("rustc", &["--version"]),
            ],
            rows: rows.to_vec(),
        }
    }

    /// Adds the version that another program reports.
    pub fn with_version_of(mut self, program: &Path) -> Self {
        let said = said_by(&program.display().to_string(), &["--version"]);
        let name = program.file_name().map(|name| name.to_string_lossy().into_owned());
        let version = said.split_whitespace().last().unwrap_or("unknown");
        self.versions.push(format!("{} {version}", name.unwrap_or_default()));
        self
    }

    /// Adds versions, each a name and a number.
    pub fn with_versions(mut self, versions: &[String]) -> Self {
        self.versions.extend_from_slice(versions);
        self
    }

    /// Keeps the rows and versions of the file at `path` that these do not replace: a row replaces the rows with the
    /// same number. Each row names its commit and machine.
    pub fn merged_with(mut self, path: &Path) -> Self {
        for row in &mut self.rows {
            row.commit.clone_from(&self.commit);
            row.machine.clone_from(&self.machine);
        }
        let earlier = std::fs::read(path)
            .ok()
            .and_then(|bytes| serde_json::from_slice::<Self>(&bytes).ok());
        if let Some(earlier) = earlier {
            let replaced = |row: &Row| self.rows.iter().any(|new| new.number() == row.number());
            let mut kept: Vec<Row> = earlier.rows.into_iter().filter(|row| !replaced(row)).collect();
            // A file may name the machine only once, for all rows.
            for row in kept.iter_mut().filter(|row| row.machine.is_empty()) {
                row.machine.clone_from(&earlier.machine);
            }
            kept.append(&mut self.rows);
            self.rows = kept;
            let program = |version: &str| version.split(' ').next().unwrap_or_default().to_owned();
            let known: Vec<String> = self.versions.iter().map(|version| program(version)).collect();
            let others = earlier.versions.into_iter();
            self.versions
                .extend(others.filter(|version| !known.contains(&program(version))));
        }
        self.rows.sort_by(|a, b| a.number().cmp(b.number()));
        self
    }

    /// Writes it as JSON, and creates the folder.
    pub fn write(&self, path: &Path) -> Result<(), BenchError> {
        let failed = |source| BenchError {
            path: path.to_owned(),
            source,
        };
        let text = serde_json::to_string_pretty(self).map_err(|error| failed(error.into()))?;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        std::fs::write(path, text + "\n").map_err(failed)
    }
}

/// A bench's file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("failed to write {}: {source}", path.display())]
pub struct BenchError {
    path: PathBuf,
    source: std::io::Error,
}

/// The output of a command; empty if the command cannot run.
fn said_by(program: &str, arguments: &[&str]) -> String {
    let ran = Command::new(program).args(arguments).output();
    ran.map(|ran| String::from_utf8_lossy(&ran.stdout).trim().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
