//! Gathers the answer of `grpo-driver tasks`, lines over a connection, into sets.

use super::sets::TaskSet;
use crate::error::Error;
use crate::pods::connection::PodConnection;
use grpo_contracts::task_sets::{ROUTE, TasksLine, TasksQuestion};

/// Sends the request, shows the progress, and gathers the sets.
pub async fn ask(
    connection: &mut PodConnection,
    question: &TasksQuestion,
    mut said: impl FnMut(&str),
) -> Result<Vec<TaskSet>, Error> {
    let mut pieces = connection.post(ROUTE, question).await?;
    let (mut sets, mut rest) = (Gathered::default(), Vec::new());
    while let Some(piece) = pieces.next().await? {
        rest.extend_from_slice(&piece);
        let mut begin = 0;
        while let Some(length) = rest[begin..].iter().position(|byte| *byte == b'\n') {
            let line = serde_json::from_slice(&rest[begin..begin + length]);
            begin += length + 1;
            let line = line.map_err(|error| Error::TasksAnswer(format!("a line cannot be read ({error})")))?;
            if let Some(words) = sets.take(line)? {
                said(&words);
            }
        }
        rest.drain(..begin);
    }
    sets.whole()
}

/// The answer so far.
#[derive(Debug, Default)]
struct Gathered {
    sets: Vec<TaskSet>,
    is_done: bool,
}

impl Gathered {
    /// Takes a line; returns a message for the user.
    fn take(&mut self, line: TasksLine) -> Result<Option<String>, Error> {
        match line {
            TasksLine::Progress(words) => return Ok(Some(words)),
            TasksLine::Set(report) => self.sets.push(TaskSet {
                report,
                rows: Some(Vec::new()),
            }),
            TasksLine::Row(row) => match self.sets.last_mut().and_then(|set| set.rows.as_mut()) {
                Some(rows) => rows.push(row),
                None => return Err(Error::TasksAnswer("a row came before its set".to_owned())),
            },
            TasksLine::Fault { reason, message } => return Err(Error::TasksFault { reason, message }),
            TasksLine::Done => self.is_done = true,
        }
        Ok(None)
    }

    fn whole(self) -> Result<Vec<TaskSet>, Error> {
        let lacks = |set: &&TaskSet| set.rows.as_ref().map(Vec::len) != Some(set.report.tasks);
        if !self.is_done {
            return Err(Error::TasksAnswer("it ended in the middle".to_owned()));
        }
        match self.sets.iter().find(lacks) {
            None => Ok(self.sets),
            Some(set) => {
                let what = format!("tasks.{} has other than {} rows", set.report.set, set.report.tasks);
                Err(Error::TasksAnswer(what))
            }
        }
    }
}

#[cfg(test)]
mod tests;
