//! Tables of the book's pages for users of another system: every setting of its scripts by name, and the field here.
//!
//! A page has its table between two markers. The rows are those of all manifests of the system: one with the same
//! setting, file and field in several manifests is there once.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use super::{
    page::{cell, value, word},
    rows::{Row, SCRIPT, Values},
};

/// Pages of `docs/src/moving`, each with the beginning of the names of its system's manifests.
pub const PAGES: [(&str, &str); 4] = [
    ("slime", "0-"),
    ("mini-swe-agent-plus", "1-"),
    ("verl-rllm", "2-"),
    ("openclaw-rl", "3-"),
];

const BEGIN: &str = "<!-- Settings: written from docs/values by `make golden`; do not edit. -->\n";
const END: &str = "<!-- End of the settings. -->\n";

/// The page with the table between its markers; nothing if it has no markers.
pub fn with_table(page: &str, table: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{table}\n{END}{after}"))
}

/// A row of the table, in the order of the table.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Setting<'a> {
    /// The name as it is sorted: without dashes, in lower case.
    order: String,
    name: &'a str,
    source: &'a str,
    /// The field, as a cell.
    field: String,
}

/// Manifests by the note that they have on a setting.
type Notes<'a> = BTreeMap<String, BTreeSet<&'a str>>;

/// The table of these manifests, and the files that the settings are in.
pub fn table(manifests: &[(String, Values)]) -> String {
    let mut settings: BTreeMap<Setting<'_>, Notes<'_>> = BTreeMap::new();
    let mut files: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (manifest, values) in manifests {
        for row in &values.settings {
            for name in row.name.all() {
                let setting = Setting {
                    order: name.trim_start_matches('-').to_lowercase(),
                    name,
                    source: row.source(),
                    field: field(row),
                };
                let notes = settings.entry(setting).or_default();
                notes.entry(note(row)).or_default().insert(manifest);
                files.entry(row.source()).or_default().insert(file(values, row));
            }
        }
    }
    let mut table = "| setting there | field here | note |\n|---|---|---|\n".to_owned();
    for (setting, notes) in &settings {
        // Writing to a String does not fail.
        let _ = writeln!(
            table,
            "| {} | {} | {} |",
            setting.title(),
            setting.field,
            all_notes(notes)
        );
    }
    table.push_str("\nWhere these settings are:\n\n");
    for (source, files) in &files {
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let _ = writeln!(table, "* {source}: {}", files.join(", "));
    }
    table
}

impl Setting<'_> {
    fn title(&self) -> String {
        match self.source {
            SCRIPT => word(self.name),
            source => format!("{} ({source})", word(self.name)),
        }
    }
}

fn field(row: &Row) -> String {
    match (&row.field, &row.of) {
        (None, _) => "no field".to_owned(),
        (Some(field), None) => format!("`{field}`"),
        (Some(field), Some(of)) => format!("`{field}` of {of}"),
    }
}

/// Why the manifest differs or, if the two only write a value differently, both values.
fn note(row: &Row) -> String {
    if let Some(because) = &row.because {
        return cell(because);
    }
    let (Some(script), Some(means)) = (&row.script, &row.means) else {
        return String::new();
    };
    let (there, here) = (value(script), value(means));
    if there == here {
        return String::new();
    }
    // Several names, and a value for each.
    let together = row.name.all().len() > 1 && there.contains(", ");
    let place = if together { "Together there" } else { "There" };
    format!("{place}: {there}. Here: {here}.")
}

/// The note of most manifests, then the others with their manifests.
fn all_notes(notes: &Notes<'_>) -> String {
    let mut notes: Vec<_> = notes.iter().collect();
    notes.sort_by_key(|(_, manifests)| Reverse(manifests.len()));
    let is_first_general = match notes.as_slice() {
        [(_, first), (_, second), ..] => first.len() > second.len(),
        _ => true,
    };
    let mut texts = Vec::new();
    for (place, (note, manifests)) in notes.into_iter().enumerate() {
        if note.is_empty() {
            continue;
        }
        if place == 0 && is_first_general {
            texts.push(note.clone());
        } else {
            let manifests: Vec<String> = manifests.iter().map(|name| format!("`{name}`")).collect();
            texts.push(format!("{}: {note}", manifests.join(", ")));
        }
    }
    texts.join(" ")
}

/// A link to the file that a row's setting is in.
fn file(values: &Values, row: &Row) -> String {
    let source = &values.sources[row.source()];
    format!(
        "[`{}`](https://github.com/{}/blob/{}/{})",
        source.file, source.repository, source.commit, source.file
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(rows: &str) -> Values {
        let text = format!("{{sources: {{script: {{repository: a/b, commit: c, file: run.sh}}}}, settings: [{rows}]}}");
        serde_yaml_ng::from_str(&text).unwrap()
    }

    #[test]
    fn a_setting_with_one_field_has_one_row_with_the_notes_of_all_manifests() {
        let first = values(
            "{name: [--lr, LR], script: 1, field: algorithm.learningRate}, \
             {name: --top-k, script: -1, means: 0, field: rollout.sampling.topK}, \
             {name: ray, script: 64, because: There is no Ray.}, {field: store, because: It is new.}",
        );
        let second = values(
            "{name: --lr, script: 2, field: algorithm.learningRate, because: It is lower.}, \
             {name: pool, script: 4, of: SandboxPool a, field: max}",
        );
        let third = values("{name: --lr, script: 1, field: algorithm.learningRate}");
        let found = table(&[
            ("a".to_owned(), first),
            ("b".to_owned(), second),
            ("c".to_owned(), third),
        ]);
        let rows: Vec<&str> = found.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| `--lr` | `algorithm.learningRate` | `b`: It is lower. |",
                "| `LR` | `algorithm.learningRate` |  |",
                "| `pool` | `max` of SandboxPool a |  |",
                "| `ray` | no field | There is no Ray. |",
                "| `--top-k` | `rollout.sampling.topK` | There: `-1`. Here: `0`. |",
                "",
                "Where these settings are:",
                "",
                "* script: [`run.sh`](https://github.com/a/b/blob/c/run.sh)",
            ]
        );
    }

    #[test]
    fn a_table_stands_between_the_markers_of_its_page() {
        let page = format!("a\n\n{BEGIN}old\n{END}\nb\n");
        let made = with_table(&page, "| new |\n").unwrap();
        assert_eq!(made, format!("a\n\n{BEGIN}\n| new |\n\n{END}\nb\n"));
        assert_eq!(with_table(&made, "| new |\n").unwrap(), made);
        assert_eq!(with_table("a\n", "| new |\n"), None);
    }
}
