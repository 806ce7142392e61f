//! The Python of sandboxes: one with pytest on this machine, and images that say which modules they have.

use grpo_driver::fault::DriverError;
use grpo_driver::tasks::imports::{ImageContents, ImageModules};
use std::path::PathBuf;
use std::sync::Arc;

/// The folder of a Python that has pytest; `make setup` makes it.
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
