//! The figures' file: rows in the form of this project's other benches (`bench/report`).

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::Failure;

/// A figure with its bar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its number, a colon, and what it is.
    pub figure: String,
    pub value: Option<f64>,
    pub unit: String,
    pub peer: Option<String>,
    pub peer_value: Option<f64>,
    /// `>=` or `<=` and a number.
    pub bar: Option<String>,
    /// Of what was measured: figures may be measured one after the other.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub commit: String,
    /// On which it was measured.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub machine: String,
}

impl Row {
    pub fn new(figure: String, value: f64, unit: &str, bar: Option<&str>) -> Self {
        Self {
            figure,
            value: Some(rounded(value)),
            unit: unit.to_owned(),
            peer: None,
            peer_value: None,
            bar: bar.map(str::to_owned),
            commit: String::new(),
            machine: String::new(),
        }
    }

    pub fn beside(mut self, peer: &str, value: f64) -> Self {
        self.peer = Some(peer.to_owned());
        self.peer_value = Some(rounded(value));
        self
    }

    pub fn meets_its_bar(&self) -> bool {
        let Some((sign, bar)) = self.bar.as_deref().and_then(|bar| bar.split_once(' ')) else {
            return true;
        };
        match (self.value, bar.parse::<f64>()) {
            (Some(value), Ok(bar)) if sign == ">=" => value >= bar,
            (Some(value), Ok(bar)) => value <= bar,
            _ => false,
        }
    }
}

/// To four digits.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct File {
    commit: String,
    machine: String,
    versions: Vec<String>,
    rows: Vec<Row>,
}

/// Puts the rows into the file, in the place of those of the same numbers.
pub fn write(path: &Path, rows: &[Row], versions: &[String]) -> Result<(), Failure> {
    let number = |row: &Row| row.figure.split(':').next().unwrap_or_default().to_owned();
    let earlier = std::fs::read(path)
        .ok()
        .and_then(|bytes| serde_json::from_slice::<File>(&bytes).ok());
    let (mut all, known) = earlier
        .map(|file| {
            // Rows of a file that named its machine only once.
            let machine = |row: Row| match row.machine.is_empty() {
                true => file.machine.clone(),
                false => row.machine,
            };
            let row = |row: Row| Row {
                machine: machine(row.clone()),
                ..row
            };
            (file.rows.into_iter().map(row).collect::<Vec<_>>(), file.versions)
        })
        .unwrap_or_default();
    all.retain(|row| rows.iter().all(|new| number(new) != number(row)));
    let mut commit = said_by("git", &["rev-parse", "--short", "HEAD"]);
    if !said_by("git", &["status", "--porcelain", "--untracked-files=no"]).is_empty() {
        commit.push('+');
    }
    let mut versions = [&[said_by("rustc", &["--version"])], versions].concat();
    // Of the peers that other rows were measured beside.
    let program = |version: &String| version.split(' ').next().unwrap_or_default().to_owned();
    let others = known
        .into_iter()
        .filter(|known| versions.iter().all(|new| program(new) != program(known)));
    versions.extend(others.collect::<Vec<_>>());
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors.lines().find_map(|line| line.strip_prefix("model name"));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let model = model.map_or("unknown processor", |rest| rest.trim_start_matches([' ', '\t', ':']));
    let machine = format!("{model}, {cores} cores");
    all.extend(rows.iter().map(|row| Row {
        commit: commit.clone(),
        machine: machine.clone(),
        ..row.clone()
    }));
    all.sort_by_key(number);
    let file = File {
        commit,
        machine,
        versions,
        rows: all,
    };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)?;
    }
    Ok(std::fs::write(path, serde_json::to_string_pretty(&file)? + "\n")?)
}

/// What a command prints; nothing where it cannot be run.
fn said_by(program: &str, arguments: &[&str]) -> String {
    let ran = Command::new(program).args(arguments).output();
    ran.map(|ran| String::from_utf8_lossy(&ran.stdout).trim().to_owned())
        .unwrap_or_default()
}
