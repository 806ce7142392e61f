//! What a command printed: all of it, or its head and its tail when it is too much.

use std::collections::VecDeque;

/// Keeps at most `limit` bytes of what passes through.
pub struct Output {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    head_limit: usize,
    tail_limit: usize,
    omitted: u64,
}

impl Output {
    pub fn new(limit: usize) -> Self {
        let head_limit = limit / 2;
        Self {
            head: Vec::new(),
            tail: VecDeque::new(),
            head_limit,
            tail_limit: limit - head_limit,
            omitted: 0,
        }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(self.head_limit - self.head.len()));
        self.head.extend_from_slice(first);
        let too_many = (self.tail.len() + rest.len()).saturating_sub(self.tail_limit);
        let from_tail = too_many.min(self.tail.len());
        self.tail.drain(..from_tail);
        self.tail.extend(&rest[too_many - from_tail..]);
        self.omitted += too_many as u64;
    }

    /// The text, with a line in the place of what was left out, and how much that was.
    pub fn text(self) -> (String, u64) {
        let (mut bytes, tail) = (self.head, Vec::from(self.tail));
        if self.omitted == 0 {
            bytes.extend_from_slice(&tail);
            return (lossy(bytes), 0);
        }
        let mut text = lossy(bytes);
        text.push_str(&format!("\n[{} bytes omitted]\n", self.omitted));
        text.push_str(&lossy(tail));
        (text, self.omitted)
    }
}

/// Copies only what is no UTF-8.
fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(limit: usize, pieces: &[&[u8]]) -> (String, u64) {
        let mut output = Output::new(limit);
        for piece in pieces {
            output.push(piece);
        }
        output.text()
    }

    #[test]
    fn what_fits_is_kept_whole() {
        assert_eq!(passed(10, &[b"01234", b"56789"]), ("0123456789".into(), 0));
        assert_eq!(passed(0, &[]), (String::new(), 0));
    }

    #[test]
    fn of_too_much_head_and_tail_are_kept_and_the_rest_is_counted() {
        assert_eq!(passed(4, &[b"abcdefgh"]), ("ab\n[4 bytes omitted]\ngh".into(), 4));
        assert_eq!(
            passed(4, &[b"a", b"bcd", b"e", b"fgh"]),
            ("ab\n[4 bytes omitted]\ngh".into(), 4)
        );
        assert_eq!(passed(0, &[b"abc"]), ("\n[3 bytes omitted]\n".into(), 3));
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced() {
        assert_eq!(passed(10, &[b"a\xffb"]).0, "a\u{fffd}b");
    }

    #[test]
    fn a_character_that_arrives_in_two_pieces_is_one() {
        assert_eq!(passed(10, &[b"\xc3", b"\xa4"]).0, "ä");
    }
}
