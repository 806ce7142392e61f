//! Requests as the API server recorded them: who, what, when to the microsecond. Everything a bench says about requests
//! is counted here.

use std::{
    fs::File,
    io::{BufRead, BufReader, Seek, SeekFrom},
    path::PathBuf,
};

use jiff::Timestamp;
use serde::Deserialize;

/// Verbs that change something.
const WRITES: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

/// The audit log of one control plane, and how far it has been read.
pub struct Audit {
    path: PathBuf,
    read: u64,
}

/// One finished request (or, for a watch, one that has begun).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Uid of who asked: see [`super::OPERATORS`].
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

    /// The renewal of a leader's lease, which is what shows that it lives.
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

    /// What has been recorded since the last call. A line that is being written is left for the next.
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

/// None for what is not counted: the end of a watch, whose beginning was.
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
