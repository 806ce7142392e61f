//! Checks that a task's image has the modules that the row's files import. Only KodCode rows name modules: images of
//! other formats are built for their tasks.

use super::format::Ungradable;
use crate::fault::DriverError;
use serde_json::Value;
use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;

/// The field of a completed row with the names of modules.
pub const FIELD: &str = "imports";
/// The recipe of an image with the modules of the published rows.
const RECIPE: &str = "docs/images/kodcode/Dockerfile";

/// The contents of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageContents {
    /// Top-level modules that its Python can import.
    Modules(BTreeSet<String>),
    /// Missing programs, without which no row can be graded.
    Without(Vec<String>),
    /// The image was not asked: every row is taken.
    Unknown,
}

/// Asks images for their modules.
pub trait ImageModules {
    fn contents(&self, image: &str) -> impl Future<Output = Result<Arc<ImageContents>, DriverError>> + Send;
}

/// Fails for every image: for rows that name no modules.
#[derive(Clone, Copy, Debug)]
pub struct NoImages;

impl ImageModules for NoImages {
    async fn contents(&self, image: &str) -> Result<Arc<ImageContents>, DriverError> {
        let message = format!("image {image} cannot be asked for its Python modules here");
        Err(DriverError::Other(message))
    }
}

/// Asks no image: for a list of a run's tasks before sandboxes exist.
#[derive(Clone, Copy, Debug)]
pub struct Unasked;

impl ImageModules for Unasked {
    async fn contents(&self, _: &str) -> Result<Arc<ImageContents>, DriverError> {
        Ok(Arc::new(ImageContents::Unknown))
    }
}

/// The modules that a completed row names.
pub fn named(row: &Value) -> Vec<&str> {
    let names = row.get(FIELD).and_then(Value::as_array);
    names.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Refuses a row if its image lacks a named module.
pub fn check(image: &str, wanted: &[&str], contents: &ImageContents) -> Result<(), Ungradable> {
    let missing: Vec<&str> = match contents {
        ImageContents::Without(programs) => {
            let what = format!(
                "image {image} lacks {}, without which no row can be graded; use an image that has them (recipe: {RECIPE})",
                programs.join(", ")
            );
            return Err(Ungradable::new("image", what));
        }
        ImageContents::Unknown => return Ok(()),
        ImageContents::Modules(modules) => wanted.iter().copied().filter(|name| !modules.contains(*name)).collect(),
    };
    match missing.is_empty() {
        true => Ok(()),
        false => {
            let what = format!(
                "image {image} lacks {}; add them to the image (recipe: {RECIPE})",
                missing.join(", ")
            );
            Err(Ungradable::new(FIELD, what))
        }
    }
}

#[cfg(test)]
mod tests;
