//! `grpo-crdgen`: writes the CRDs and the fields that name Secrets into the chart, and the API's reference page into
//! the book. `grpo-crdgen FOLDER`: only the CRDs, there.

mod secrets;

use std::{error::Error, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = std::env::args_os().nth(1);
    if folder
        .as_ref()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"-"))
    {
        return Err("usage: grpo-crdgen [FOLDER]".into());
    }
    let crds = folder
        .as_ref()
        .map_or_else(|| root.join("charts/grpo-operator/crds"), |folder| folder.into());
    for (file, yaml) in grpo_crds::crd::documents()? {
        write(&crds.join(file), &yaml)?;
    }
    if folder.is_none() {
        write(
            &root.join("charts/grpo-operator").join(secrets::FILE),
            &secrets::document()?,
        )?;
        write(&root.join("docs/src/reference.md"), &grpo_crds::reference::page()?)?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), Box<dyn Error>> {
    let failed = |error: std::io::Error| format!("failed to write {}: {error}", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    fs::write(path, text).map_err(failed)?;
    println!("{}", path.display());
    Ok(())
}
