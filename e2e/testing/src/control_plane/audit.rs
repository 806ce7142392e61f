//! Requests as the API server recorded them: client, request, and time to the microsecond. Every bench counts its
//! requests here.

use std::{
    fs::File,
    io::{BufRead, BufReader, Seek, SeekFrom},
    path::PathBuf,
};

use jiff::Timestamp;
use serde::Deserialize;

/// Verbs that change objects.
const WRITES: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

/// The audit log of one control plane, and the position up to which it was read.
pub struct Audit {
    path: PathBuf,
    read: u64,
}

/// A finished request, or a watch that has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Uid of the client: see [`super::OPERATORS`].
    pub by: String,
    pub verb: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub code: u16,
    pub received: Timestamp,
    pub answered: Timestamp,
}

impl Request {
    pub fn is_write(&self) -> bool {
        WRITES.contains(&self.verb.as_str())
    }

    /// Whether it is the renewal of a leader's lease, by which the leader shows that it lives.
    pub fn is_heartbeat(&self) -> bool {
        self.resource == "leases"
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    stage: String,
    verb: String,
    user: Who,
    #[serde(default)]
    object_ref: ObjectRef,
    response_status: Option<Answer>,
    request_received_timestamp: Timestamp,
    stage_timestamp: Timestamp,
}

#[derive(Deserialize)]
struct Who {
    #[serde(default)]
    uid: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectRef {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    code: u16,
}

impl Audit {
    pub fn new(path: PathBuf) -> Self {
        Self { path, read: 0 }
    }

    /// The requests recorded since the last call. An incomplete line is left for the next call.
    pub fn fresh(&mut self) -> std::io::Result<Vec<Request>> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        file.seek(SeekFrom::Start(self.read))?;
        let (mut lines, mut line, mut requests) = (BufReader::new(file), String::new(), Vec::new());
        loop {
            line.clear();
            let length = lines.read_line(&mut line)?;
            if length == 0 || !line.ends_with('\n') {
                return Ok(requests);
            }
            self.read += length as u64;
            requests.extend(parse(&line));
        }
    }
}

/// `None` for the end of a watch, whose beginning was counted.
fn parse(line: &str) -> Option<Request> {
    let line: Line = serde_json::from_str(line).ok()?;
    let is_watch = line.verb == "watch";
    (is_watch == (line.stage == "ResponseStarted")).then(|| Request {
        by: line.user.uid,
        verb: line.verb,
        resource: line.object_ref.resource,
        subresource: line.object_ref.subresource,
        namespace: line.object_ref.namespace,
        name: line.object_ref.name,
        code: line.response_status.map_or(0, |answer| answer.code),
        received: line.request_received_timestamp,
        answered: line.stage_timestamp,
    })
}

#[cfg(test)]
mod tests;
