//! The book's page of values: one table for each manifest.

use std::fmt::Write;

use serde_json::Value;

use super::{
    manifests::Manifests,
    rows::{LEFT_OUT, Row, SCRIPT, Values},
};

const BEGIN: &str = "<!-- Written from docs/values by `make golden`; do not edit. -->

# Every value beside its script

Each [example](examples/index.md) stands for a script of a public system. The tables name every setting of the script, its value
there, and the value and field of the manifest. Where the two differ, or no field has the setting, the last column says why. Values that a
script takes from its defaults or from other files of the system are named where they have a counterpart; each such file has a name in
parentheses. *Left out* means that an optional field is not set. `cargo test -p grpo-crds script_values` compares manifests and tables: a
difference without a reason fails, and so do a reason without a difference and a value of a manifest that no table names. The tables have the
scripts' values as they were read at the commits named; no test reads the scripts themselves.

";

/// The page.
pub fn page(manifests: &Manifests, values: &[(String, Values)]) -> String {
    let mut page = BEGIN.to_owned();
    page.push_str("| manifest | settings | as in the script | differ | without a field | only in the manifest |\n");
    page.push_str("|---|---|---|---|---|---|\n");
    for (name, values) in values {
        let count = |kind: fn(&Row) -> bool| values.settings.iter().filter(|row| kind(row)).count();
        let own = count(|row| row.name.all().is_empty());
        let without = count(|row| row.field.is_none());
        let equal = count(|row| row.because.is_none());
        let all = values.settings.len() - own;
        let differ = all - without - equal;
        // Writing to a String does not fail.
        let _ = match values.because {
            Some(_) => writeln!(page, "| [{name}](#{}) | no script | | | | |", anchor(name)),
            None => writeln!(
                page,
                "| [{name}](#{}) | {all} | {equal} | {differ} | {without} | {own} |",
                anchor(name)
            ),
        };
    }
    for (name, values) in values {
        let _ = write!(page, "\n## {name}\n\n");
        match &values.because {
            Some(reason) => {
                let _ = writeln!(page, "{reason}");
            }
            None => table(&mut page, manifests, name, values),
        }
    }
    page
}

/// The anchor of a heading, as mdBook makes it.
fn anchor(heading: &str) -> String {
    heading.to_lowercase()
}

fn table(page: &mut String, manifests: &Manifests, name: &str, values: &Values) {
    let _ = writeln!(page, "[The manifest](examples/{name}.md), beside:\n");
    let used = |key: &str| values.settings.iter().any(|row| row.source() == key);
    let (script, others): (Vec<_>, Vec<_>) = values
        .sources
        .iter()
        .filter(|(key, _)| used(key))
        .partition(|(key, _)| *key == SCRIPT);
    for (key, source) in script.into_iter().chain(others) {
        let short: String = source.commit.chars().take(7).collect();
        let _ = writeln!(
            page,
            "* {key}: [`{}`](https://github.com/{}/blob/{}/{}) of {}, {short}",
            source.file, source.repository, source.commit, source.file, source.repository
        );
    }
    page.push_str("\n| setting | script | manifest | why it differs |\n|---|---|---|---|\n");
    let (of_script, own): (Vec<&Row>, Vec<&Row>) = values.settings.iter().partition(|row| !row.name.all().is_empty());
    for row in of_script.into_iter().chain(own) {
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} |",
            setting(row),
            row.script.as_ref().map(value).unwrap_or_default(),
            here(manifests, name, row),
            row.because.as_deref().map(cell).unwrap_or_default()
        );
    }
}

fn setting(row: &Row) -> String {
    let names: Vec<String> = row.name.all().iter().map(|name| word(name)).collect();
    match (names.is_empty(), row.source()) {
        (true, _) => "only in the manifest".to_owned(),
        (false, SCRIPT) => names.join(", "),
        (false, source) => format!("{} ({source})", names.join(", ")),
    }
}

/// Value and path in the manifest.
fn here(manifests: &Manifests, name: &str, row: &Row) -> String {
    let Some(field) = &row.field else {
        return "no field".to_owned();
    };
    let of = row.of.as_deref();
    // A path that does not exist is another test's fault to name.
    let found = manifests.value(name, of, field).unwrap_or(Value::Null);
    let path = match of {
        Some(of) => format!("`{field}` of {of}"),
        None => format!("`{field}`"),
    };
    match &found {
        Value::Object(_) => path,
        Value::Array(items) if items.iter().any(Value::is_object) => path,
        found => format!("{}: {path}", value(found)),
    }
}

pub fn value(value: &Value) -> String {
    match value {
        Value::String(text) if text == LEFT_OUT => format!("*{LEFT_OUT}*"),
        Value::String(text) => word(text),
        // The script's 1.0e-6 and the manifest's are the same number.
        Value::Number(number) => format!("`{}`", number.as_f64().map_or(number.to_string(), short)),
        other => format!("`{}`", cell(&other.to_string())),
    }
}

fn short(number: f64) -> String {
    if number != 0.0 && number.abs() < 1e-3 {
        format!("{number:e}")
    } else {
        number.to_string()
    }
}

/// A name as code, a text of several words as it is.
pub fn word(text: &str) -> String {
    let code = !text.contains(' ') || text.starts_with('-');
    if code { format!("`{}`", cell(text)) } else { cell(text) }
}

/// Text that breaks no table.
pub fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
