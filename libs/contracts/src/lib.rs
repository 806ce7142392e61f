//! Shared agreements between processes: the file that a run's processes start with, names and labels of objects, exit
//! codes, ports, limits of shared formats, and the fields of a GrpoRun that this version executes.
//!
//! * [`run_config::RunConfig`]: the resolved run, which the operator mounts into driver and trainer as `run.json`;
//! * [`live`]: the changes of it that a running driver applies;
//! * [`names`]: labels, names of volume claims, field managers, the size of ledger shards;
//! * [`access`]: audiences of tokens and the service accounts that carry them;
//! * [`driver_epoch`]: which attempt of a driver gives an order, and the refusal of an earlier attempt;
//! * [`listen`]: addresses that services listen on;
//! * [`volumes`]: the volumes with datasets and lists of instances in a driver's pod;
//! * [`task_sets`]: a driver's report on the rows of a run's sets;
//! * [`image_name`]: names of images, and a pool's rewrites of them;
//! * [`exit`]: exit codes of driver and trainer, and a trainer's termination message;
//! * [`reason`]: the reasons of conditions, events and faults;
//! * [`support`]: the fields that driver and trainer refuse;
//! * [`test_setup`]: files by which a patch could decide test results;
//! * [`weights`]: which weights versions are kept, and in which form.

pub mod access;
pub mod driver_epoch;
pub mod exit;
pub mod image_name;
pub mod listen;
pub mod live;
pub mod names;
pub mod reason;
pub mod run_config;
pub mod support;
pub mod task_sets;
pub mod test_setup;
pub mod volumes;
pub mod weights;

pub use run_config::{ConfigMapMount, DatasetLocation, DatasetMount, ModelDownload, RemoteModel, RunConfig};
