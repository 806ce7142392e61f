//! `promptOverrides`: problem statements that replace those of the rows.
//!
//! A file of rows `{instance_id, problem_statement}`, or one JSON object of names and statements. The rest of a row,
//! and its grading, stay as they are.

use super::format::Candidate;
use super::reader;
use super::source::Source;
use crate::downloads::Downloads;
use crate::fault::{DriverError, TerminalFault};
use grpo_contracts::reason::Reason;
use grpo_records::store::sha256_hex;
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;

/// The longest file that is one JSON object, in bytes: it is read whole. A ConfigMap has 1 MiB at most.
const MAX_OBJECT: u64 = 64 << 20;
const NAME: &str = "instance_id";
const STATEMENT: &str = "problem_statement";

/// Statements by instance.
#[derive(Clone, Debug, Default)]
pub struct Statements {
    by_instance: HashMap<String, String>,
}

impl Downloads<'_> {
    /// The statements of a set's overrides; empty without overrides.
    pub async fn statements(&self, source: Option<&Source>) -> Result<Statements, DriverError> {
        let mut statements = Statements::default();
        if let Some(source) = source {
            for file in self.files(source).await? {
                statements.read(&file)?;
            }
        }
        Ok(statements)
    }
}

impl Statements {
    pub fn len(&self) -> usize {
        self.by_instance.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_instance.is_empty()
    }

    /// Adds a file's statements.
    pub fn read(&mut self, file: &Path) -> Result<(), TerminalFault> {
        if let Some(object) = object(file) {
            for (name, statement) in object {
                self.take(name, statement, &format!("{}", file.display()))?;
            }
            return Ok(());
        }
        for row in reader::rows(file) {
            let mut row = row?;
            let place = format!("{} of promptOverrides", row.place);
            let name = match row.fields.remove(NAME) {
                Some(Value::String(name)) => name,
                _ => return Err(invalid(&place, &format!("field {NAME} is not the name of an instance"))),
            };
            let statement = row.fields.remove(STATEMENT).unwrap_or_default();
            self.take(name, statement, &place)?;
        }
        Ok(())
    }

    fn take(&mut self, name: String, statement: Value, place: &str) -> Result<(), TerminalFault> {
        let Value::String(statement) = statement else {
            return Err(invalid(place, &format!("the {STATEMENT} of {name} is not a text")));
        };
        if self.by_instance.contains_key(&name) {
            return Err(invalid(place, &format!("{name} has two statements; leave one")));
        }
        self.by_instance.insert(name, statement);
        Ok(())
    }

    /// Puts the instance's statement into its row, if it has one, and changes the row's checksum: a run that resumes
    /// with other statements has other tasks.
    pub fn apply(&self, row: &mut Candidate) -> bool {
        let Some(statement) = self.by_instance.get(&row.instance) else {
            return false;
        };
        row.sha256 = sha256_hex(format!("{} {statement}", row.sha256).as_bytes());
        row.fields.insert(STATEMENT.to_owned(), statement.as_str().into());
        true
    }
}

/// The file as one object of names and statements. `None` for JSON lines: several rows do not parse as one object, and
/// a single row has a statement.
fn object(file: &Path) -> Option<serde_json::Map<String, Value>> {
    let is_short = std::fs::metadata(file).is_ok_and(|known| known.len() <= MAX_OBJECT);
    let text = is_short.then(|| std::fs::read(file).ok()).flatten()?;
    let object: serde_json::Map<String, Value> = serde_json::from_slice(&text).ok()?;
    // A file of one row has this field.
    (!object.contains_key(STATEMENT)).then_some(object)
}

fn invalid(place: &str, what: &str) -> TerminalFault {
    TerminalFault::new(Reason::PromptOverridesInvalid, format!("{place}: {what}"))
}

#[cfg(test)]
mod tests;
