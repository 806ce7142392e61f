//! The rows of a run's history at Weights & Biases, and the newest values for its table of runs.
//!
//! The points of one entry of the journal are one row. So the rows are a function of the journal alone: however many
//! entries come at a time, file and upload have the same rows under the same numbers, and so has the next driver.

use crate::trackers::points::Point;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The x axis of all curves: W&B's own steps count rows, and may not go back.
pub const AXIS: &str = "step";

/// A row of the history: values by name, also those that W&B itself gives to a row.
pub struct Row {
    /// From 0, without a gap.
    pub number: i64,
    pub values: Vec<(String, Value)>,
}

/// What points add.
#[derive(Default)]
pub struct Added {
    /// Curves without earlier points.
    pub curves: Vec<String>,
    pub rows: Vec<Row>,
    /// The newest value of each name in `rows`.
    pub newest: BTreeMap<String, Value>,
}

/// Counts rows since the run's start.
pub struct Rows {
    /// When the run began, in seconds since 1970.
    pub began: i64,
    /// Curves that have points.
    pub curves: BTreeSet<String>,
    next: i64,
}

impl Rows {
    pub fn since(began: i64) -> Self {
        Self {
            began,
            curves: BTreeSet::new(),
            next: 0,
        }
    }

    /// The number of rows so far.
    pub fn count(&self) -> i64 {
        self.next
    }

    /// `points`: all of some entries, in the order of the journal.
    pub fn add(&mut self, points: &[Point]) -> Added {
        let mut added = Added::default();
        for of_entry in points.chunk_by(|a, b| a.entry == b.entry) {
            let mut row: BTreeMap<&str, f64> = BTreeMap::new();
            for point in of_entry {
                if self.curves.insert(point.curve.clone()) {
                    added.curves.push(point.curve.clone());
                }
                row.insert(&point.curve, point.value);
            }
            let Some(first) = of_entry.first() else { continue };
            let mut values: Vec<(String, Value)> = row
                .into_iter()
                .map(|(curve, value)| (curve.to_owned(), json!(value)))
                .collect();
            for (name, value) in [
                (AXIS, json!(first.step)),
                ("_timestamp", json!(first.at)),
                ("_runtime", json!(first.at - self.began)),
                ("_step", json!(self.next)),
            ] {
                values.push((name.to_owned(), value));
            }
            added.newest.extend(values.iter().cloned());
            let number = self.next;
            added.rows.push(Row { number, values });
            self.next += 1;
        }
        added
    }
}

#[cfg(test)]
mod tests;
