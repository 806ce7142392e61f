//! What two processes must agree on and neither owns: the file a run's processes are started with, names and labels of
//! objects, exit codes, ports, limits of shared formats, and which fields of a GrpoRun this version executes.
//!
//! * [`run_config::RunConfig`]: what the operator resolves a run to and mounts into driver and trainer as `run.json`;
//! * [`live`]: which changes of it a running driver takes over;
//! * [`names`]: labels, names of claims, field managers, shards of a ledger;
//! * [`access`]: audiences of tokens and the service accounts that carry them;
//! * [`listen`]: addresses that services listen on;
//! * [`volumes`]: the volumes with datasets and lists of instances that a driver's pod has;
//! * [`task_sets`]: what a driver says of the rows of a run's sets;
//! * [`image_name`]: names of images, and a pool's rewrites of them;
//! * [`exit`]: exit codes of driver and trainer, and a trainer's termination message;
//! * [`reason`]: the reasons of conditions, events and faults;
//! * [`support`]: the fields that driver and trainer refuse;
//! * [`weights`]: which versions of the weights are kept, and in which form.

pub mod access;
pub mod exit;
pub mod image_name;
pub mod listen;
pub mod live;
pub mod names;
pub mod reason;
pub mod run_config;
pub mod support;
pub mod task_sets;
pub mod volumes;
pub mod weights;

pub use run_config::{ConfigMapMount, DatasetLocation, DatasetMount, ModelDownload, RemoteModel, RunConfig};
