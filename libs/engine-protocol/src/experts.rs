//! The experts of a mixture that each token was routed to: the engine reports them and the trainer repeats them (router
//! replay, arXiv 2510.11370).
//!
//! An engine computes every token except the last one that it samples, so an answer has the experts of all tokens
//! before the last. The request names the first position, because the experts of earlier turns were already sent.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// Maximum bytes of expert numbers in an answer, for writing and for reading: 300,000 tokens of a model with 48 layers
/// and 8 experts per token.
pub const MOST_BYTES: usize = 128 << 20;

/// The experts of the tokens from `from` on, in base64: the expert numbers for each token, and within it for each of
/// the model's layers in order. Layers without experts are included; their numbers mean nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoutedExperts {
    /// Position of the first token, in the prompt and the sampled tokens after it.
    pub from: usize,
    pub tokens: usize,
    /// Numbers per token: layers times experts per token.
    pub per_token: usize,
    /// Bytes per number: 1, or 2 in little-endian order.
    pub width: usize,
    pub data: String,
}

/// Why expert data is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpertsFault {
    #[error("numbers of experts have {width} bytes; 1 and 2 are known: is the engine agent of the same release?")]
    Width { width: usize },
    #[error(
        "{tokens} tokens with {per_token} numbers of experts each are more than {MOST_BYTES} bytes: give episodes less context, or set algorithm.routerReplay: false"
    )]
    TooMany { tokens: usize, per_token: usize },
    #[error("{tokens} tokens with {per_token} numbers of experts each should be {wanted} bytes, there are {found}")]
    Length {
        tokens: usize,
        per_token: usize,
        wanted: usize,
        found: usize,
    },
    #[error("the numbers of experts are not base64: {cause}")]
    Base64 { cause: String },
}

impl RoutedExperts {
    /// From numbers of `width` bytes each.
    pub fn of_bytes(from: usize, tokens: usize, width: usize, bytes: &[u8]) -> Result<Self, ExpertsFault> {
        let per_token = bytes.len() / (tokens * width).max(1);
        let experts = Self {
            from,
            tokens,
            per_token,
            width,
            data: String::new(),
        };
        experts.check(bytes.len())?;
        Ok(Self {
            data: STANDARD.encode(bytes),
            ..experts
        })
    }

    /// From numbers of any size, in the smallest width that fits all.
    pub fn of_numbers(from: usize, tokens: usize, numbers: &[u16]) -> Result<Self, ExpertsFault> {
        if numbers.iter().all(|number| *number <= u16::from(u8::MAX)) {
            let bytes: Vec<u8> = numbers.iter().map(|number| *number as u8).collect();
            return Self::of_bytes(from, tokens, 1, &bytes);
        }
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        Self::of_bytes(from, tokens, 2, &bytes)
    }

    /// All numbers: `per_token` for each token.
    pub fn numbers(&self) -> Result<Vec<u16>, ExpertsFault> {
        // Before decoding allocates memory.
        self.check(self.data.len() / 4 * 3 - self.data.bytes().rev().take_while(|byte| *byte == b'=').count().min(2))?;
        let bytes = STANDARD.decode(&self.data).map_err(|error| ExpertsFault::Base64 {
            cause: error.to_string(),
        })?;
        Ok(match self.width {
            1 => bytes.into_iter().map(u16::from).collect(),
            _ => bytes
                .chunks_exact(2)
                .map(|two| u16::from_le_bytes([two[0], two[1]]))
                .collect(),
        })
    }

    fn check(&self, found: usize) -> Result<(), ExpertsFault> {
        let Self {
            tokens,
            per_token,
            width,
            ..
        } = *self;
        if !matches!(width, 1 | 2) {
            return Err(ExpertsFault::Width { width });
        }
        let wanted = tokens
            .checked_mul(per_token)
            .and_then(|numbers| numbers.checked_mul(width))
            .filter(|bytes| *bytes <= MOST_BYTES)
            .ok_or(ExpertsFault::TooMany { tokens, per_token })?;
        if wanted != found {
            return Err(ExpertsFault::Length {
                tokens,
                per_token,
                wanted,
                found,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
