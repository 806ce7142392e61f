//! The files of a model directory beside its config and weights: tokenizer, templates and so on. Exports, published
//! versions and merged models have them too.

use std::io::ErrorKind;
use std::path::Path;

use crate::error::ModelError;

/// These files, if present.
pub const COMPANIONS: [&str; 9] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "README.md",
];

/// The folder of a model's chat templates other than the default, such as the one of prompts with tools.
const NAMED_TEMPLATES: &str = "additional_chat_templates";

/// The path of a named template in a model directory.
pub fn named_template(name: &str) -> String {
    format!("{NAMED_TEMPLATES}/{name}")
}

/// Names of the files with named templates, sorted; empty if the model has none. Folders and other files are not among
/// them.
pub fn named_templates(model_dir: &Path) -> Result<Vec<String>, ModelError> {
    let folder = model_dir.join(NAMED_TEMPLATES);
    let unreadable = |source| ModelError::Read {
        path: folder.display().to_string(),
        source,
    };
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let path = entry.map_err(unreadable)?.path();
        let is_template = path.extension().is_some_and(|ending| ending == "jinja") && path.is_file();
        if let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|_| is_template) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Copies the named templates, if any, to their folder in `target`, which must not have that folder.
pub fn copy_named_templates(model_dir: &Path, target: &Path) -> Result<(), ModelError> {
    let names = named_templates(model_dir)?;
    if names.is_empty() {
        return Ok(());
    }
    let failed = |path: &Path, source| ModelError::Write {
        path: path.display().to_string(),
        source,
    };
    let folder = target.join(NAMED_TEMPLATES);
    std::fs::create_dir(&folder).map_err(|error| failed(&folder, error))?;
    for name in names {
        let (from, to) = (model_dir.join(named_template(&name)), folder.join(&name));
        std::fs::copy(&from, &to).map_err(|error| failed(&to, error))?;
    }
    Ok(())
}
