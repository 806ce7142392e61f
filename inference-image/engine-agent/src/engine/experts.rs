//! Converts the experts of tokens from each engine's format to ours.
//!
//! vLLM returns a NumPy file in base64: an array of tokens, layers and experts per token, of unsigned numbers of 8 or
//! 16 bits. SGLang returns only the numbers, 32 bits each; the number per token follows from the known number of
//! tokens. Both have rows for every layer, dense ones included, and for every token from the requested position to the
//! last but one, prefix cache hits included. Only the driver checks layers and numbers against the model: this agent
//! does not have it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use grpo_engine_protocol::{CompletionRequest, ErrorBody, ErrorCode, ExpertsFault, RoutedExperts};

use super::wire::misbehaved;

const MAGIC: &[u8] = b"\x93NUMPY";

/// The tokens of a row whose experts were requested.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    from: usize,
    tokens: usize,
}

/// A NumPy array with its header.
#[derive(Debug, PartialEq, Eq)]
struct Array<'a> {
    /// Bytes of a number.
    width: usize,
    shape: Vec<usize>,
    data: &'a [u8],
}

impl Asked {
    /// The tokens of a row of `sampled` tokens after this prompt; `None` if experts were not requested.
    pub fn of(request: &CompletionRequest, prompt: usize, sampled: usize) -> Option<Self> {
        request.routed_experts_from.map(|from| Self {
            from,
            // The last token was sampled but not computed.
            tokens: (prompt + sampled).saturating_sub(1 + from),
        })
    }

    /// Converts from vLLM's format.
    pub fn of_vllm(self, said: Option<&str>) -> Result<RoutedExperts, ErrorBody> {
        if self.tokens == 0 {
            return self.none();
        }
        let bytes = self.decoded(said, "vLLM")?;
        let array = Array::read(&bytes).map_err(|why| misbehaved(format!("the experts vLLM returned: {why}")))?;
        let [tokens, layers, each] = array.shape[..] else {
            return Err(misbehaved(format!(
                "the experts vLLM returned have shape {:?}",
                array.shape
            )));
        };
        if tokens != self.tokens {
            return Err(self.other_tokens(tokens));
        }
        let experts = match array.width {
            4 => RoutedExperts::of_numbers(self.from, tokens, &narrowed(array.data)?),
            width => RoutedExperts::of_bytes(self.from, tokens, width, array.data),
        };
        let experts = experts.map_err(unusable)?;
        if experts.per_token != layers * each {
            return Err(misbehaved("the experts vLLM returned are fewer than their shape says"));
        }
        Ok(experts)
    }

    /// Converts from SGLang's format.
    pub fn of_sglang(self, said: Option<&str>) -> Result<RoutedExperts, ErrorBody> {
        if self.tokens == 0 {
            return self.none();
        }
        let bytes = self.decoded(said, "SGLang")?;
        let numbers = narrowed(&bytes)?;
        if !numbers.len().is_multiple_of(self.tokens) {
            return Err(misbehaved(format!(
                "SGLang returned {} numbers of experts for {} tokens",
                numbers.len(),
                self.tokens
            )));
        }
        RoutedExperts::of_numbers(self.from, self.tokens, &numbers).map_err(unusable)
    }

    /// The result if no token lies between the requested position and the last token.
    fn none(self) -> Result<RoutedExperts, ErrorBody> {
        RoutedExperts::of_numbers(self.from, 0, &[]).map_err(unusable)
    }

    fn decoded(self, said: Option<&str>, engine: &str) -> Result<Vec<u8>, ErrorBody> {
        let said = said.ok_or_else(|| {
            not_reported(&format!(
                "{engine} was asked for experts and returned none: it was started without --enable-return-routed-experts"
            ))
        })?;
        STANDARD
            .decode(said)
            .map_err(|error| misbehaved(format!("the experts {engine} returned are not base64: {error}")))
    }

    fn other_tokens(self, found: usize) -> ErrorBody {
        misbehaved(format!(
            "the engine returned experts of {found} tokens, {} were asked for",
            self.tokens
        ))
    }
}

/// The refusal of an engine that cannot report its tokens' experts.
pub fn not_reported(why: &str) -> ErrorBody {
    ErrorBody::new(ErrorCode::ExpertsNotReported, why)
}

fn unusable(fault: ExpertsFault) -> ErrorBody {
    misbehaved(fault.to_string())
}

/// Narrows numbers of 32 bits; no model's experts need more than 16.
fn narrowed(bytes: &[u8]) -> Result<Vec<u16>, ErrorBody> {
    let mut numbers = Vec::with_capacity(bytes.len() / 4);
    for four in bytes.chunks(4) {
        let number = four.try_into().ok().map(i32::from_le_bytes);
        let number = number.and_then(|number| u16::try_from(number).ok());
        numbers.push(number.ok_or_else(|| misbehaved("the engine returned an invalid expert index"))?);
    }
    Ok(numbers)
}

impl<'a> Array<'a> {
    /// Reads a NumPy file, version 1 to 3: a header in Python syntax, then the numbers.
    fn read(file: &'a [u8]) -> Result<Self, String> {
        let short = || "they end too early".to_owned();
        let rest = file.strip_prefix(MAGIC).ok_or("they are no file of NumPy's")?;
        let (version, rest) = rest.split_at_checked(2).ok_or_else(short)?;
        let bytes_of_length = if version[0] == 1 { 2 } else { 4 };
        let (length, rest) = rest.split_at_checked(bytes_of_length).ok_or_else(short)?;
        let length = length
            .iter()
            .rev()
            .fold(0, |length, byte| length << 8 | usize::from(*byte));
        let (header, data) = rest.split_at_checked(length).ok_or_else(short)?;
        let header = String::from_utf8_lossy(header);
        let after = |key: &str| {
            let found = header.split_once(&format!("'{key}':"));
            found
                .map(|(_, value)| value.trim_start())
                .ok_or(format!("their header has no {key}"))
        };
        let width = match after("descr")?.split('\'').nth(1) {
            Some("|u1") => 1,
            Some("<u2") => 2,
            Some("<i4") => 4,
            other => return Err(format!("their numbers are {other:?}")),
        };
        if !after("fortran_order")?.starts_with("False") {
            return Err("their numbers are in another order".to_owned());
        }
        let shape = after("shape")?;
        let shape = shape.strip_prefix('(').and_then(|shape| shape.split_once(')'));
        let shape = shape.ok_or("their shape is malformed")?.0;
        let shape = shape.split(',').map(str::trim).filter(|size| !size.is_empty());
        let shape: Vec<usize> = shape
            .map(|size| size.parse().map_err(|_| "their shape is malformed".to_owned()))
            .collect::<Result<_, _>>()?;
        Ok(Self { width, shape, data })
    }
}

#[cfg(test)]
mod tests;
