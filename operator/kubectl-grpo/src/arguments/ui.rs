//! The arguments of `kubectl grpo ui`.

use super::names::run_name;
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug, Default)]
pub struct Ui {
    /// Runs of the cluster. Several are compared.
    #[arg(value_parser = run_name, required_unless_present = "from", num_args = 0..=8, value_name = "RUN")]
    pub runs: Vec<String>,
    /// A folder with a copy of a run's store (it contains journal/). May be given several times.
    #[arg(long, value_name = "DIR")]
    pub from: Vec<PathBuf>,
    /// The port of this machine; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// Write the page and all views to this folder, in place of serving them. It needs no server: open its index.html.
    #[arg(long, value_name = "DIR")]
    pub bundle: Option<PathBuf>,
    /// Image for the pod that reads the store of a run without a driver. Default: that of the run's last driver.
    #[arg(long, value_name = "IMAGE")]
    pub reader_image: Option<String>,
}
