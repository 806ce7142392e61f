//! Emulators of Azure's and Google's object stores, for behavior that Amazon's protocol does not show:
//! `make check-stores`.
//!
//! Both are configured as a user does it: a URL, an endpoint, and a Secret that is mounted as files.

mod azurite;
mod fake_gcs;

use std::path::Path;

use grpo_crds::sources::ObjectStoreSource;
use grpo_hub::FileSource;
use grpo_hub::snapshot::Progress;
use grpo_object_storage::{BucketFiles, Content};

use crate::support::Result;

/// A mounted Secret.
fn secret(folder: &Path, keys: &[(&str, &str)]) {
    std::fs::create_dir_all(folder).unwrap();
    for (name, value) in keys {
        std::fs::write(folder.join(name), value).unwrap();
    }
}

fn weights(seed: u8) -> Vec<u8> {
    (0..3 << 20).map(|at| seed.wrapping_add((at % 251) as u8)).collect()
}

/// A model is downloaded as it was listed, the rest of a partial download by a range. Rows are one file of the same
/// folder. The error names a replaced object. `replace` gives the weights their second version.
async fn a_model_and_rows_are_read(
    bucket: &ObjectStoreSource,
    secret: &Path,
    replace: impl AsyncFnOnce() -> Result<()>,
) -> Result<()> {
    let model = BucketFiles::open(Content::Model, bucket, Some(secret)).await?;
    let pin = model.pin().await?;
    let cache = tempfile::tempdir()?;
    // As a killed download leaves it.
    let parts = cache.path().join(model.folder()).join("parts");
    std::fs::create_dir_all(&parts)?;
    let part = grpo_records::store::sha256_hex(format!("{}/model.safetensors", pin.commit).as_bytes());
    std::fs::write(parts.join(part), &weights(1)[..1_000_000])?;
    let folder = pin.fetch(&model, cache.path(), &Progress::default()).await?;
    assert!(std::fs::read(folder.join("model.safetensors"))? == weights(1));
    assert_eq!(std::fs::read_to_string(folder.join("config.json"))?, "{}");

    let at = |url: String| ObjectStoreSource { url, ..bucket.clone() };
    let rows = at(format!("{}/rows.jsonl", bucket.url));
    let rows = BucketFiles::open(Content::Dataset, &rows, Some(secret)).await?;
    let listed = rows.pin().await?;
    let folder = listed.fetch(&rows, cache.path(), &Progress::default()).await?;
    assert_eq!(std::fs::read_to_string(folder.join(&listed.files[0].path))?, "{}\n");

    replace().await?;
    let elsewhere = tempfile::tempdir()?;
    let changed = pin.fetch(&model, elsewhere.path(), &Progress::default()).await;
    let changed = changed.err().ok_or("it was fetched")?.to_string();
    assert!(changed.contains("was replaced or deleted"), "{changed}");
    Ok(())
}
