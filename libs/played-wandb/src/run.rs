//! A run at the simulated server: its config, and the files that `file_stream` writes line by line.

use serde_json::{Value, json};

const HISTORY: &str = "wandb-history.jsonl";
const EVENTS: &str = "wandb-events.jsonl";
const SUMMARY: &str = "wandb-summary.json";
const OUTPUT: &str = "output.log";

/// A run as the service would show it.
#[derive(Clone, Debug)]
pub struct PlayedRun {
    pub display_name: String,
    /// `{name: {"value": …}}`.
    pub config: Value,
    pub summary: Value,
    /// `running`, `finished` or `failed`.
    pub state: &'static str,
    pub exit_code: Option<i64>,
    /// How many rows each request to `file_stream` had.
    pub posts: Vec<usize>,
    /// Rows that came again with another content.
    pub changed: usize,
    /// Rows that came again.
    pub repeated: usize,
    pub(crate) events: usize,
    pub(crate) output: usize,
    history: Vec<String>,
}

impl Default for PlayedRun {
    fn default() -> Self {
        Self {
            display_name: String::new(),
            config: json!({}),
            summary: json!({}),
            state: "running",
            exit_code: None,
            posts: Vec::new(),
            changed: 0,
            repeated: 0,
            events: 0,
            output: 0,
            history: Vec::new(),
        }
    }
}

/// Lines of one file from an offset on.
struct Chunk {
    offset: usize,
    lines: Vec<String>,
}

impl Chunk {
    fn of(value: &Value) -> Result<Self, String> {
        let offset = value["offset"].as_u64().ok_or("a chunk without an offset")?;
        let lines = value["content"].as_array().ok_or("a chunk without content")?;
        let lines: Option<Vec<String>> = lines.iter().map(|line| line.as_str().map(str::to_owned)).collect();
        Ok(Self {
            offset: usize::try_from(offset).map_err(|wrong| wrong.to_string())?,
            lines: lines.ok_or("a line that is no text")?,
        })
    }
}

fn parsed(line: &str) -> Result<Value, String> {
    let value: Value = serde_json::from_str(line).map_err(|wrong| format!("{wrong} in {line}"))?;
    match value.is_object() {
        true => Ok(value),
        false => Err(format!("no object: {line}")),
    }
}

impl PlayedRun {
    /// The rows in their order, as they were sent.
    pub(crate) fn lines(&self) -> &[String] {
        &self.history
    }

    /// The rows in their order.
    pub fn history(&self) -> Vec<Value> {
        // They were parsed before they were kept.
        self.history.iter().filter_map(|line| parsed(line).ok()).collect()
    }

    /// What the service keeps of `_wandb` for clients that continue a run.
    pub(crate) fn wandb_config(&self) -> Value {
        match self.config.pointer("/_wandb/value/t") {
            Some(telemetry) => json!({"t": telemetry}),
            None => json!({}),
        }
    }

    pub(crate) fn upsert(&mut self, variables: &Value) -> Result<(), String> {
        if let Some(config) = variables["config"].as_str() {
            self.config = parsed(config)?;
        }
        if let Some(name) = variables["displayName"].as_str() {
            name.clone_into(&mut self.display_name);
        }
        (self.state, self.exit_code) = ("running", None);
        Ok(())
    }

    /// Takes a request to `file_stream`, or nothing of it.
    pub(crate) fn take(&mut self, body: &Value) -> Result<(), String> {
        let mut rows = 0;
        let mut next = self.clone();
        for (file, chunks) in body["files"].as_object().into_iter().flatten() {
            // The log is several chunks, the other files are one.
            let chunks = chunks
                .as_array()
                .map_or_else(|| vec![chunks], |chunks| chunks.iter().collect());
            for chunk in chunks {
                let chunk = Chunk::of(chunk)?;
                let end = chunk.offset + chunk.lines.len();
                match file.as_str() {
                    HISTORY => {
                        rows += chunk.lines.len();
                        next.put(chunk)?;
                    }
                    SUMMARY => {
                        if let Some(line) = chunk.lines.last() {
                            next.summary = parsed(line)?;
                        }
                    }
                    EVENTS => next.events = next.events.max(end),
                    OUTPUT => next.output = next.output.max(end),
                    other => return Err(format!("the simulated server has no file {other}")),
                }
            }
        }
        (next.state, next.exit_code) = match (body["complete"].as_bool(), body["exitcode"].as_i64()) {
            (Some(true), Some(0)) => ("finished", Some(0)),
            (Some(true), code) => ("failed", code),
            _ => ("running", None),
        };
        next.posts.push(rows);
        *self = next;
        Ok(())
    }

    /// Puts rows at their numbers. Rows may come again; a gap would stay empty, and is refused.
    fn put(&mut self, chunk: Chunk) -> Result<(), String> {
        if chunk.offset > self.history.len() {
            return Err(format!(
                "rows from {} on, and {} are there",
                chunk.offset,
                self.history.len()
            ));
        }
        for (line, at) in chunk.lines.into_iter().zip(chunk.offset..) {
            let row = parsed(&line)?;
            match self.history.get_mut(at) {
                Some(there) => {
                    self.repeated += 1;
                    self.changed += usize::from(parsed(there)? != row);
                    *there = line;
                }
                None => self.history.push(line),
            }
        }
        Ok(())
    }
}
