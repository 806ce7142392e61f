//! `grpo-crdgen [FOLDER]`: writes the CRDs into the chart (or the folder given).

use std::{error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../charts/grpo-operator/crds"),
        PathBuf::from,
    );
    fs::create_dir_all(&folder).map_err(|error| format!("failed to make the folder {}: {error}", folder.display()))?;
    for (file, yaml) in grpo_crds::crd::documents()? {
        let path = folder.join(file);
        fs::write(&path, yaml).map_err(|error| format!("failed to write {}: {error}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}
