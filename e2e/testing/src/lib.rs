//! Rigs of the tests that cross processes: a connection to a Kubernetes cluster, and a cluster without nodes to start.
//!
//! [`cluster`] connects, applies runs, waits for states and copies stores; the demo uses it too. [`control_plane`]
//! starts a Kubernetes without nodes, for tests of the API server's decisions and of the operator at scale; [`ask`]
//! sends it manifests, and [`chart`] installs what the operator needs. [`s3`] starts a server of object storage,
//! [`emulators`] those of two clouds, and [`mlflow`] a server that shows curves.

use std::path::{Path, PathBuf};

pub mod ask;
pub mod chart;
pub mod cluster;
pub mod control_plane;
pub mod emulators;
pub mod mlflow;
pub mod s3;
mod test_server;

pub use test_server::TestServerError;

/// The root of the checkout.
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// The path of a workspace program in the folder of the running one, if it was built.
pub fn program(name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let mut folders = own.ancestors().skip(1).take(2);
    folders.find_map(|folder| Some(folder.join(name)).filter(|path| path.exists()))
}
