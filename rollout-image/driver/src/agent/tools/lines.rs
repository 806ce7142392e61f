//! Lines of a file, as all tools count them.

/// The lines of a text, without their ends. A text that ends with a newline has no empty line after it.
///
/// Lines end where Python's own tokenizer ends them, so that `view`, `rewrite` and pdb count alike; the original also
/// counted form feeds and the like here.
pub fn lines(text: &str) -> Vec<&str> {
    text.lines().collect()
}
