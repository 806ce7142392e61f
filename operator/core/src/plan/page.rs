//! The text of a plan: sections of YAML that pages may include by name.

use serde::Serialize;

use super::source::Unreadable;

/// The text so far.
pub struct Page(String);

impl Page {
    pub fn new(example: &str) -> Self {
        Self(format!(
            "# What ../{example}.yaml becomes in a cluster. Written by the operator's tests (`make golden`) and not by hand.\n"
        ))
    }

    /// Adds a section that pages may include by its name. An empty section says so.
    pub fn section(&mut self, name: &'static str, content: &impl Serialize) -> Result<(), Unreadable> {
        let text =
            serde_yaml_ng::to_string(&content).map_err(|source| Unreadable::Section { section: name, source })?;
        let key = name.replace('-', " ");
        self.begin(name);
        match text.trim() {
            "{}" | "[]" => self.0.push_str(&format!("{key}: nothing\n")),
            text => self.0.push_str(&format!("{key}:\n{}\n", indented(text))),
        }
        self.end(name);
        Ok(())
    }

    pub fn text(self) -> String {
        self.0
    }

    pub fn begin(&mut self, anchor: &str) {
        self.0.push_str(&format!("# ANCHOR: {anchor}\n"));
    }

    pub fn end(&mut self, anchor: &str) {
        self.0.push_str(&format!("# ANCHOR_END: {anchor}\n"));
    }
}

fn indented(text: &str) -> String {
    let lines: Vec<String> = text
        .lines()
        .map(|line| {
            if line.is_empty() {
                String::new()
            } else {
                format!("  {line}")
            }
        })
        .collect();
    lines.join("\n")
}
