//! The run's curves for TensorBoard: `tensorboard/events.out.tfevents.<seconds>.attempt-<n>` in the run's store. `wandb
//! sync` takes the same file.
//!
//! A file is a sequence of records, `length (u64), masked crc of it, protobuf Event, masked crc of it`, little endian
//! (TensorFlow's `record_writer.cc`, `event.proto`, `summary.proto`). An attempt begins with a session log: TensorBoard
//! then drops the earlier files' records of its first step and later ones, so a replayed step is shown once.
//!
//! Curves are a convenience: a step does not fail if they cannot be written. The numbers themselves are in
//! `metrics/trainer/`.

use std::time::{SystemTime, UNIX_EPOCH};

use grpo_records::store::{StoreError, wait};
use grpo_records::trainer::StepMetrics;
use grpo_records::{RunStore, paths};
use prost::Message;

use super::Rank;

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(oneof = "What", tags = "3, 5, 7")]
    what: Option<What>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum What {
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
    #[prost(message, tag = "7")]
    Session(Session),
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    values: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, tag = "2")]
    simple_value: f32,
}

#[derive(Clone, PartialEq, Message)]
struct Session {
    /// 1: start.
    #[prost(int32, tag = "1")]
    status: i32,
}

/// The file of one attempt.
pub(super) struct Curves {
    store: RunStore,
    path: String,
}

impl Curves {
    /// Begins a file whose records replace earlier ones of this step and later steps.
    fn begin(store: RunStore, attempt: u32, step: u32) -> Result<Self, StoreError> {
        let name = format!("events.out.tfevents.{:010}.attempt-{attempt}", seconds() as u64);
        let path = format!("{}/{name}", paths::TENSORBOARD);
        let curves = Self { store, path };
        curves.write(0, What::FileVersion("brain.Event:2".to_owned()))?;
        curves.write(step.into(), What::Session(Session { status: 1 }))?;
        Ok(curves)
    }

    fn show(&self, metrics: &StepMetrics) -> Result<(), StoreError> {
        let values = metrics.numbers().into_iter().map(|(name, number)| Value {
            tag: format!("trainer/{name}"),
            simple_value: number as f32,
        });
        let summary = Summary {
            values: values.collect(),
        };
        self.write(metrics.step.into(), What::Summary(summary))
    }

    fn write(&self, step: i64, what: What) -> Result<(), StoreError> {
        let event = Event {
            wall_time: seconds(),
            step,
            what: Some(what),
        };
        wait(self.store.append(&self.path, record(&event.encode_to_vec()).into()))
    }
}

fn record(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length), event, &masked_crc(event)].concat()
}

/// A masked checksum, as TFRecord uses for data that contain checksums.
fn masked_crc(bytes: &[u8]) -> [u8; 4] {
    let crc = crc32c::crc32c(bytes);
    crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

fn seconds() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

impl Rank {
    /// Adds a step to the curves. A slow store must not look like a hang.
    pub(super) fn show(&mut self, metrics: &StepMetrics) {
        let watch = self.watch.clone();
        if let Err(error) = watch.busy("writing the curves", || self.try_to_show(metrics)) {
            tracing::warn!(%error, step = metrics.step, "writing the curves; the step's numbers are in metrics/trainer");
        }
    }

    fn try_to_show(&mut self, metrics: &StepMetrics) -> Result<(), StoreError> {
        if self.curves.is_none() {
            let store = self.store.records().clone();
            let attempt = self.board.with(|shared| shared.state.attempt);
            self.curves = Some(Curves::begin(store, attempt, metrics.step)?);
        }
        self.curves.as_ref().map_or(Ok(()), |curves| curves.show(metrics))
    }
}

#[cfg(test)]
mod tests;
