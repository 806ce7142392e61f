//! The model's folder: Qwen3's tokenizer and chat template. It has no weights; the engine is simulated.

use super::DriverBenchError;
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;

const END: &str = "<|im_end|>";

pub struct Model {
    pub folder: PathBuf,
    tokenizer: Tokenizer,
}

impl Model {
    pub fn open(folder: &Path) -> Result<Self, DriverBenchError> {
        let file = folder.join("tokenizer.json");
        let tokenizer = Tokenizer::from_file(&file).map_err(|error| {
            let message = format!("{}: {error}; run e2e/setup/agent-peers.sh", file.display());
            DriverBenchError::Wrong(message)
        })?;
        Ok(Self {
            folder: folder.to_owned(),
            tokenizer,
        })
    }

    /// The ids of an answer, including its end token.
    pub fn answer(&self, text: &str) -> Result<Vec<u32>, DriverBenchError> {
        let encoded = self.tokenizer.encode_fast(text, false);
        let encoded = encoded.map_err(|error| DriverBenchError::Wrong(format!("encoding an answer: {error}")))?;
        let end = self.tokenizer.token_to_id(END);
        let end = end.ok_or_else(|| DriverBenchError::Wrong(format!("the tokenizer has no {END}")))?;
        Ok(encoded.get_ids().iter().copied().chain([end]).collect())
    }
}
