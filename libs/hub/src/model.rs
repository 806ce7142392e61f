//! Selects the files of a model's repository that serving and training need.

use crate::error::HubError;
use crate::repository::{RemoteFile, Repository};

/// The only weights format: others may contain code, or contain the same weights again.
const WEIGHTS: &str = ".safetensors";
/// Configuration, tokenizer, chat template, and code that some models' configuration names.
const BESIDE: [&str; 7] = [".json", ".txt", ".model", ".jinja", ".tiktoken", ".py", ".md"];
/// Folders with the same weights for other programs.
const OTHER_PROGRAMS: [&str; 6] = ["original/", "onnx/", "openvino/", "gguf/", "coreml/", "mlx/"];

/// A file without which a folder is not a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lacking {
    Configuration,
    Weights,
}

/// The model's files in a repository. An error names the missing file.
pub fn files(repository: &Repository, all: &[RemoteFile]) -> Result<Vec<RemoteFile>, HubError> {
    chosen(all).map_err(|lacking| HubError::Selection {
        repository: repository.clone(),
        what: match lacking {
            Lacking::Configuration => "has no config.json: it is not a model that transformers loads",
            Lacking::Weights => "has no weights in safetensors; look for a revision such as refs/pr/1 that has them",
        }
        .to_owned(),
    })
}

/// The files of a listing that a model needs.
pub fn chosen(all: &[RemoteFile]) -> Result<Vec<RemoteFile>, Lacking> {
    let chosen: Vec<RemoteFile> = all.iter().filter(|file| is_needed(&file.path)).cloned().collect();
    if !chosen.iter().any(|file| file.path == "config.json") {
        return Err(Lacking::Configuration);
    }
    if !chosen.iter().any(|file| is_weights(&file.path)) {
        return Err(Lacking::Weights);
    }
    Ok(chosen)
}

/// Whether a file holds tensors.
pub fn is_weights(path: &str) -> bool {
    path.ends_with(WEIGHTS)
}

fn is_needed(path: &str) -> bool {
    let hidden = path.split('/').any(|part| part.starts_with('.'));
    let other = OTHER_PROGRAMS.iter().any(|folder| path.starts_with(folder));
    let kind = is_weights(path) || BESIDE.iter().any(|end| path.ends_with(end));
    kind && !hidden && !other
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::Digest;

    fn paths_of_model(paths: &[&str]) -> Result<Vec<String>, HubError> {
        let file = |path: &&str| RemoteFile {
            path: (*path).to_owned(),
            size: 1,
            digest: Digest::GitBlob(String::new()),
        };
        let all: Vec<_> = paths.iter().map(file).collect();
        let files = files(&Repository::model("a/b"), &all)?;
        Ok(files.into_iter().map(|file| file.path).collect())
    }

    #[test]
    fn weights_come_once_and_with_what_reads_them() {
        let found = paths_of_model(&[
            ".gitattributes",
            "config.json",
            "model-00001-of-00002.safetensors",
            "model.safetensors.index.json",
            "pytorch_model.bin",
            "original/consolidated.00.safetensors",
            "onnx/config.json",
            "tokenizer.json",
            "merges.txt",
            "chat_template.jinja",
            "additional_chat_templates/tool_use.jinja",
            "model.gguf",
        ]);
        let wanted = [
            "config.json",
            "model-00001-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
            "merges.txt",
            "chat_template.jinja",
            "additional_chat_templates/tool_use.jinja",
        ];
        assert_eq!(found.unwrap(), wanted);
    }

    #[test]
    fn a_repository_without_configuration_or_safetensors_is_refused() {
        for (paths, lack) in [
            (&["model.safetensors"][..], "config.json"),
            (&["config.json", "pytorch_model.bin"], "safetensors"),
        ] {
            let message = paths_of_model(paths).unwrap_err().to_string();
            assert!(message.contains(lack) && message.contains("a/b"), "{message}");
        }
    }
}
