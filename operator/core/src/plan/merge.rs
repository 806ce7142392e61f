//! Merges the pods of one group, which differ little: shows one pod, and where they differ the values of all, in the
//! order of their names.

use serde_yaml_ng::{Mapping, Value};

/// Separator of the values of different pods.
const BETWEEN: &str = " | ";

/// One value for all pods, or `a | b | c` if they differ.
pub fn merged(values: &[Value]) -> Value {
    let Some(first) = values.first() else {
        return Value::Null;
    };
    if values.iter().all(|value| value == first) {
        return first.clone();
    }
    merged_mappings(values)
        .or_else(|| merged_sequences(values))
        .unwrap_or_else(|| Value::String(side_by_side(values)))
}

fn merged_mappings(values: &[Value]) -> Option<Value> {
    let mappings: Vec<&Mapping> = values.iter().map(Value::as_mapping).collect::<Option<_>>()?;
    let mut merged_mapping = Mapping::new();
    for key in mappings.iter().flat_map(|mapping| mapping.keys()) {
        if !merged_mapping.contains_key(key) {
            let of_each: Vec<Value> = mappings
                .iter()
                .map(|mapping| mapping.get(key).cloned().unwrap_or(Value::Null))
                .collect();
            merged_mapping.insert(key.clone(), merged(&of_each));
        }
    }
    Some(Value::Mapping(merged_mapping))
}

fn merged_sequences(values: &[Value]) -> Option<Value> {
    let sequences: Vec<&Vec<Value>> = values.iter().map(Value::as_sequence).collect::<Option<_>>()?;
    let length = sequences.first()?.len();
    if sequences.iter().any(|sequence| sequence.len() != length) {
        return None;
    }
    let item = |n: usize| merged(&sequences.iter().map(|sequence| sequence[n].clone()).collect::<Vec<_>>());
    Some(Value::Sequence((0..length).map(item).collect()))
}

fn side_by_side(values: &[Value]) -> String {
    let words: Vec<String> = values.iter().map(in_words).collect();
    words.join(BETWEEN)
}

fn in_words(value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::String(text) => text.clone(),
        other => serde_yaml_ng::to_string(other)
            .unwrap_or_default()
            .trim()
            .replace('\n', ", "),
    }
}

#[cfg(test)]
mod tests;
