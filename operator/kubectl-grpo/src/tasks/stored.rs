//! Reads reports and rows of a run's sets from its store.

use super::sets::TaskSet;
use crate::error::Error;
use crate::records::Source;
use grpo_contracts::task_sets::SetReport;
use grpo_records::look::{Refusal, RefusalCause, RefusalCode};
use grpo_records::paths;
use serde::de::DeserializeOwned;

/// The store's content about some sets.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    pub sets: Vec<TaskSet>,
    /// Sets whose rows are only in their dataset: the driver stores rows that it completed.
    pub without_rows: Vec<String>,
}

/// `run` is for messages.
pub async fn read(source: &mut Source, run: &str, sets: &[String], needs_rows: bool) -> Result<Stored, Error> {
    let mut stored = Stored {
        sets: Vec::new(),
        without_rows: Vec::new(),
    };
    for set in sets {
        let path = paths::task_report(set);
        let Some(bytes) = source.whole_file(&path).await? else {
            return Err(Error::NoRows {
                run: run.to_owned(),
                set: set.clone(),
            });
        };
        let report: SetReport = decoded(&path, &bytes)?;
        let path = paths::task_rows(set);
        let rows = match needs_rows {
            true => source.whole_file(&path).await?,
            false => None,
        };
        let lines = rows
            .as_ref()
            .map(|rows| rows.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()));
        let rows = lines.map(|lines| lines.map(|line| decoded(&path, line)).collect::<Result<Vec<_>, _>>());
        let rows = rows.transpose()?;
        if rows.is_none() {
            stored.without_rows.push(set.clone());
        }
        stored.sets.push(TaskSet { report, rows });
    }
    Ok(stored)
}

fn decoded<T: DeserializeOwned>(path: &str, bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|error| {
        Error::Records(Refusal {
            code: RefusalCode::Unreadable,
            message: format!("{path} of the store cannot be read: {error}"),
            fault: RefusalCause::Infrastructure,
        })
    })
}
