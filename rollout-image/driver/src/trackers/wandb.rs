//! A file of Weights & Biases' offline mode in the run's store: `wandb/attempt-N/run-ID.wandb`, or `attempt-N.M` after
//! a write that failed. [`live`] sends the same [`rows`] to a server.
//!
//! Each attempt of the driver has one file with all points since the run's start, so the newest file is whole: `wandb
//! sync` uploads it. The run's id there is the uid, so a second upload continues the same run.
//!
//! The file is a log in LevelDB's form (<https://github.com/google/leveldb/blob/main/doc/log_format.md>) behind seven
//! bytes, with plain CRC-32 (`wandb/sdk/internal/datastore.py`). Its records are protobuf
//! (`wandb/proto/wandb_internal.proto`, MIT); field numbers are that file's.

pub mod live;
mod rows;

use super::points::Point;
use super::{Standing, Tracker, TrackerError};
use futures::future::BoxFuture;
use grpo_contracts::RunConfig;
use grpo_crds::grpo_run::WandbTracker;
use grpo_records::{RunStore, paths};
use prost::Message;
use rows::{AXIS, Row, Rows};
use serde_json::Value;

const BLOCK: usize = 32 << 10;
const FRAME: usize = 7;
/// `:W&B`, 0xBEE1 little endian, version 0.
const BEGINNING: [u8; FRAME] = [b':', b'W', b'&', b'B', 0xe1, 0xbe, 0];
const PRODUCER: &str = "0.19.0";

#[derive(Clone, PartialEq, Message)]
pub(super) struct Record {
    #[prost(int64, tag = "1")]
    pub num: i64,
    #[prost(oneof = "What", tags = "2, 3, 12, 17, 18, 20, 21")]
    pub what: Option<What>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum What {
    #[prost(message, tag = "2")]
    History(History),
    #[prost(message, tag = "3")]
    Summary(Items),
    #[prost(message, tag = "12")]
    Metric(Metric),
    #[prost(message, tag = "17")]
    Run(Run),
    #[prost(message, tag = "18")]
    Exit(Exit),
    /// Without it the exit is held back.
    #[prost(message, tag = "20")]
    Final(Final),
    #[prost(message, tag = "21")]
    Header(Header),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(message, optional, tag = "1")]
    version: Option<Version>,
}

#[derive(Clone, PartialEq, Message)]
struct Version {
    #[prost(string, tag = "1")]
    producer: String,
    #[prost(string, tag = "2")]
    min_consumer: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Run {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub entity: String,
    #[prost(string, tag = "3")]
    pub project: String,
    #[prost(message, optional, tag = "4")]
    config: Option<Items>,
    #[prost(string, tag = "8")]
    pub display_name: String,
    #[prost(message, optional, tag = "17")]
    start_time: Option<Time>,
}

#[derive(Clone, PartialEq, Message)]
struct Time {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

/// Of a config and of a summary.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Items {
    #[prost(message, repeated, tag = "1")]
    pub update: Vec<Item>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Final {}

/// A key and its value in JSON.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Item {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "16")]
    pub value_json: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct History {
    #[prost(message, repeated, tag = "1")]
    pub item: Vec<Item>,
    #[prost(message, optional, tag = "2")]
    step: Option<Step>,
}

#[derive(Clone, PartialEq, Message)]
struct Step {
    #[prost(int64, tag = "1")]
    num: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Metric {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub step_metric: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Exit {
    #[prost(int32, tag = "1")]
    pub exit_code: i32,
}

pub struct Wandb {
    store: RunStore,
    attempt: u32,
    /// Files that this attempt began. One is left: each has all points since the run's start.
    files: u64,
    path: String,
    run: Run,
    /// Bytes of the file.
    length: usize,
    records: i64,
    rows: Rows,
    ended: bool,
}

/// The project of a run there.
fn project(wanted: &WandbTracker, config: &RunConfig) -> String {
    wanted.project.clone().unwrap_or_else(|| config.namespace.clone())
}

impl Wandb {
    pub fn of(wanted: &WandbTracker, config: &RunConfig, store: RunStore, attempt: u32) -> Self {
        let update = super::parameters(config).into_iter();
        let update = update.map(|(key, value)| item(key, &value)).collect();
        let run = Run {
            id: config.uid.clone(),
            entity: wanted.entity.clone().unwrap_or_default(),
            project: project(wanted, config),
            config: Some(Items { update }),
            display_name: config.name.clone(),
            start_time: None,
        };
        Self {
            store,
            attempt,
            files: 0,
            path: String::new(),
            run,
            length: 0,
            records: 0,
            rows: Rows::since(0),
            ended: false,
        }
    }

    /// Appends records in one write.
    async fn write(&mut self, records: Vec<What>) -> Result<(), TrackerError> {
        let mut bytes = Vec::new();
        if self.length == 0 {
            bytes.extend(BEGINNING);
        }
        for what in records {
            self.records += 1;
            let record = Record {
                num: self.records,
                what: Some(what),
            };
            frame(self.length + bytes.len(), &record.encode_to_vec(), &mut bytes);
        }
        self.length += bytes.len();
        Ok(self.store.append(&self.path, bytes.into()).await?)
    }
}

fn item(key: &str, value: &Value) -> Item {
    Item {
        key: key.to_owned(),
        value_json: value.to_string(),
    }
}

/// Appends a record to `bytes`, in as many fragments as blocks; `at`: the end of the file.
fn frame(mut at: usize, record: &[u8], bytes: &mut Vec<u8>) {
    let mut rest = record;
    let mut is_first = true;
    loop {
        let left = BLOCK - at % BLOCK;
        if left < FRAME {
            bytes.resize(bytes.len() + left, 0);
            at += left;
            continue;
        }
        let (part, after) = rest.split_at(rest.len().min(left - FRAME));
        let kind: u8 = match (is_first, after.is_empty()) {
            (true, true) => 1,
            (true, false) => 2,
            (false, false) => 3,
            (false, true) => 4,
        };
        let mut sum = crc32fast::Hasher::new();
        sum.update(&[kind]);
        sum.update(part);
        bytes.extend(sum.finalize().to_le_bytes());
        bytes.extend((part.len() as u16).to_le_bytes());
        bytes.push(kind);
        bytes.extend(part);
        at += FRAME + part.len();
        (rest, is_first) = (after, false);
        if rest.is_empty() {
            return;
        }
    }
}

impl Wandb {
    /// The axes of curves that are new, the rows, and the newest values for the table of runs, which a client of W&B
    /// would add.
    fn records(&mut self, points: &[Point]) -> Vec<What> {
        let added = self.rows.add(points);
        let mut records: Vec<What> = added.curves.iter().map(|curve| metric(curve, AXIS)).collect();
        records.extend(added.rows.iter().map(history));
        let update = added.newest.iter().map(|(name, value)| item(name, value)).collect();
        records.push(What::Summary(Items { update }));
        records
    }
}

fn history(row: &Row) -> What {
    What::History(History {
        item: row.values.iter().map(|(name, value)| item(name, value)).collect(),
        step: Some(Step { num: row.number }),
    })
}

fn metric(name: &str, axis: &str) -> What {
    What::Metric(Metric {
        name: name.to_owned(),
        step_metric: axis.to_owned(),
    })
}

impl Tracker for Wandb {
    fn name(&self) -> &'static str {
        "wandb"
    }

    /// Begins a file in place of the last one, which a write that failed may have left in the middle of a record.
    fn begin(&mut self, began: i64) -> BoxFuture<'_, Result<u64, TrackerError>> {
        Box::pin(async move {
            if self.files > 0 {
                self.store.delete(&self.path).await?;
            }
            let folder = match self.files {
                0 => format!("{}/attempt-{}", paths::WANDB, self.attempt),
                again => format!("{}/attempt-{}.{again}", paths::WANDB, self.attempt),
            };
            self.files += 1;
            self.path = format!("{folder}/run-{}.wandb", self.run.id);
            (self.length, self.records, self.ended) = (0, 0, false);
            self.rows = Rows::since(began);
            self.run.start_time = Some(Time { seconds: began });
            let version = Version {
                producer: PRODUCER.to_owned(),
                min_consumer: PRODUCER.to_owned(),
            };
            let header = What::Header(Header { version: Some(version) });
            self.write(vec![header, What::Run(self.run.clone()), metric(AXIS, "")])
                .await?;
            Ok(0)
        })
    }

    fn add<'a>(&'a mut self, _upto: u64, points: &'a [Point]) -> BoxFuture<'a, Result<(), TrackerError>> {
        Box::pin(async move {
            let records = self.records(points);
            self.write(records).await
        })
    }

    /// A run that works again has a driver with a file of its own, so the end is in the file once.
    fn stand(&mut self, standing: Standing) -> BoxFuture<'_, Result<(), TrackerError>> {
        Box::pin(async move {
            let Standing::Ended { succeeded } = standing else {
                return Ok(());
            };
            if !self.ended {
                let exit = What::Exit(Exit {
                    exit_code: i32::from(!succeeded),
                });
                self.write(vec![exit, What::Final(Final {})]).await?;
                self.ended = true;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
