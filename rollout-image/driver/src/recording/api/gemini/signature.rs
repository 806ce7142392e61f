//! Reasoning in the signatures of parts: gemini-cli leaves thoughts out of its history, and keeps the signatures of
//! texts and calls. Anyone can read them: there is nothing to hide from the client.

/// What a signature has before the reasoning: the second one for reasoning with an odd number of bytes, so that the
/// number of digits is a multiple of four. Such digits are also Base64, as clients expect it, and stay the same text in
/// each of its alphabets.
const OURS: [&str; 2] = ["grpo-operator:", "grpo-operator/:"];

/// The reasoning as a signature.
pub(super) fn of(reasoning: &str) -> String {
    hex::encode(format!("{}{reasoning}", OURS[reasoning.len() % 2]))
}

/// The reasoning of a signature; `None` if it is not the endpoint's own.
pub(super) fn read(signature: &str) -> Option<String> {
    let text = String::from_utf8(hex::decode(signature).ok()?).ok()?;
    let reasoning = OURS.iter().find_map(|ours| text.strip_prefix(*ours))?;
    Some(reasoning.to_owned())
}
