//! Texts of sandboxes and of the policy, as the page shows them: bounded, with nothing hidden.

use super::wire::Text;
use grpo_records::show::harmless;

/// The beginning of a text, with its control characters visible.
pub fn text(whole: &str, most: usize) -> Text {
    let mut end = most.min(whole.len());
    while !whole.is_char_boundary(end) {
        end -= 1;
    }
    Text {
        text: visible(&whole[..end]),
        omitted: (whole.len() - end) as u64,
    }
}

/// Control characters become signs, and so do those that turn the direction of a line: a sandbox could show a command
/// that was not run. Each becomes one character, so places in the text stay.
pub fn visible(text: &str) -> String {
    let turns =
        |c: char| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    harmless(text).replace(turns, "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters_and_says_how_much_is_left_out() {
        let cut = text("aé", 2);
        assert_eq!((cut.text.as_str(), cut.omitted), ("a", 2));
        assert_eq!(text("aé", 3).omitted, 0);
    }

    #[test]
    fn characters_that_turn_or_hide_a_line_are_visible_and_keep_its_length() {
        let shown = text("rm\u{202e}x\u{0}\u{1b}[31m\n\ty", 100).text;
        assert_eq!(shown, "rm\u{fffd}x\u{2400}\u{241b}[31m\n\ty");
    }
}
