//! Shows the tasks of a run's sets as a table, JSON, ids, images, or rows. Pure: the input is sets, the output text.

use crate::arguments::tools::Form;
use crate::sandbox_pool::{pulled_name, pulled_names};
use crate::text;
use grpo_contracts::task_sets::SetReport;
use grpo_crds::SandboxPoolSpec;
use grpo_records::show::harmless;
use serde_json::{Value, json};
use std::collections::HashSet;

/// The widest line of a skipped row.
const WIDTH: usize = 120;

/// One set.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskSet {
    pub report: SetReport,
    /// The rows as graders get them, in order. `None` if not requested.
    pub rows: Option<Vec<Value>>,
}

fn field<'a>(row: &'a Value, name: &str) -> &'a str {
    row[name].as_str().unwrap_or_default()
}

fn rows(sets: &[TaskSet]) -> impl Iterator<Item = &Value> {
    sets.iter().flat_map(|set| set.rows.iter().flatten())
}

/// Images of all sets, as nodes pull them.
pub fn images(sets: &[TaskSet], pool: Option<&SandboxPoolSpec>) -> Vec<String> {
    pulled_names(pool, rows(sets).map(|row| field(row, "image")))
}

/// Text from datasets cannot control the terminal.
pub fn shown(sets: &[TaskSet], form: Form, pool: Option<&SandboxPoolSpec>) -> String {
    let lines = |lines: &mut dyn Iterator<Item = String>| lines.map(|line| line + "\n").collect();
    match form {
        Form::Table => harmless(&table(sets, pool)).into_owned(),
        Form::Json => {
            let text = serde_json::to_string_pretty(&object(sets, pool)).unwrap_or_default();
            text + "\n"
        }
        Form::Ids => {
            let mut known = HashSet::new();
            let ids = rows(sets).map(|row| field(row, "instance_id"));
            lines(&mut ids.filter(|id| known.insert(*id)).map(|id| harmless(id).into_owned()))
        }
        Form::Images => lines(&mut images(sets, pool).iter().map(|image| harmless(image).into_owned())),
        Form::Rows => lines(&mut rows(sets).map(Value::to_string)),
    }
}

fn table(sets: &[TaskSet], pool: Option<&SandboxPoolSpec>) -> String {
    let line = |set: &TaskSet| {
        let report = &set.report;
        let formats = report.rows.iter().map(|(format, count)| format!("{count} {format}"));
        let of_set = std::slice::from_ref(set);
        vec![
            report.set.clone(),
            formats.collect::<Vec<_>>().join(", "),
            report.tasks.to_string(),
            set.rows
                .as_ref()
                .map_or_else(|| "-".to_owned(), |_| images(of_set, pool).len().to_string()),
            report.skipped.len().to_string(),
        ]
    };
    let lines: Vec<_> = sets.iter().map(line).collect();
    let mut out = text::table(&["SET", "ROWS", "TASKS", "IMAGES", "SKIPPED"], &lines);
    for SetReport { set, skipped, .. } in sets.iter().map(|set| &set.report) {
        if skipped.is_empty() {
            continue;
        }
        out += &format!("\nSkipped in {set}:\n");
        for row in skipped {
            let name = row
                .instance
                .as_deref()
                .map_or_else(String::new, |name| format!("{name}, "));
            out += &text::paragraph(&format!("{name}{}: {}", row.place, row.cause), "  ", WIDTH);
        }
    }
    if pool.is_some_and(|pool| pool.package_index.is_none()) {
        for SetReport { set, installing, .. } in sets.iter().map(|set| &set.report) {
            if let Some(words) = installing.in_words() {
                out += &format!("\nPackages in {set}:\n{}", text::paragraph(&words, "  ", WIDTH));
            }
        }
    }
    out
}

fn object(sets: &[TaskSet], pool: Option<&SandboxPoolSpec>) -> Value {
    let task = |row: &Value| json!({"id": field(row, "instance_id"), "image": pulled_name(pool, field(row, "image"))});
    let set = |set: &TaskSet| {
        let tasks: Vec<Value> = set.rows.iter().flatten().map(task).collect();
        json!({"report": set.report, "tasks": tasks})
    };
    json!({"sets": sets.iter().map(set).collect::<Vec<_>>(), "images": images(sets, pool)})
}

#[cfg(test)]
mod tests;
