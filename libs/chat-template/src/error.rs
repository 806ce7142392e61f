//! Why a prompt cannot be rendered.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error("reading {file} of the model: {source}")]
    Read { file: PathBuf, source: std::io::Error },
    #[error("{file} of the model: {what}")]
    File { file: PathBuf, what: String },
    #[error("rendering the model's chat template: {0}")]
    Render(#[from] minijinja::Error),
    #[error("tokenising with the model's tokenizer: {0}")]
    Tokenise(#[source] tokenizers::Error),
    #[error("the model's chat template {0}")]
    Shape(String),
    /// A defect of the prompt, not of the model: its author can correct it.
    #[error("{what}: {why}")]
    Json { what: String, why: String },
}
