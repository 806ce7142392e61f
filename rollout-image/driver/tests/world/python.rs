//! The Python of sandboxes: a Python with pytest on this machine, images that list their modules, and the grader.

use grpo_driver::fault::DriverError;
use grpo_driver::tasks::imports::{ImageContents, ImageModules};
use std::path::PathBuf;
use std::sync::Arc;

/// The folder of a Python with pytest; `make setup` makes it.
pub fn pytest() -> PathBuf {
    let home = std::env::var("HOME").unwrap_or_default();
    let cache = std::env::var("GRPO_CACHE").unwrap_or_else(|_| format!("{home}/.cache/grpo-operator"));
    let bin = PathBuf::from(cache).join("pytest/bin");
    assert!(
        bin.join("pytest").is_file(),
        "pytest is not installed in {}: run make setup (e2e/setup/python.sh)",
        bin.display()
    );
    bin
}

/// Images that all have Python and these modules.
pub struct Images(pub Vec<&'static str>);

impl ImageModules for Images {
    async fn contents(&self, _: &str) -> Result<Arc<ImageContents>, DriverError> {
        let modules = self.0.iter().map(|name| (*name).to_owned());
        Ok(Arc::new(ImageContents::Modules(modules.collect())))
    }
}

pub fn grader_worker() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../grader/worker.py")
}

/// The folder of the official grader's packages; `make setup` puts them there.
pub fn grader_site() -> PathBuf {
    let home = std::env::var("HOME").unwrap_or_default();
    let cache = std::env::var("GRPO_CACHE").unwrap_or_else(|_| format!("{home}/.cache/grpo-operator"));
    let site = std::env::var("GRPO_GRADER_SITE").unwrap_or_else(|_| format!("{cache}/grader-site"));
    assert!(
        std::path::Path::new(&site).join("swebench").is_dir(),
        "the official grader is not installed in {site}: run make setup, or pip install --no-deps --target {site} -r rollout-image/grader/requirements.txt"
    );
    PathBuf::from(site)
}
