//! A titled part of the text, with its lines indented.

use std::fmt::Write;

pub(super) fn block(out: &mut String, title: &str, body: &str) {
    let _ = writeln!(out, "--- {title}");
    for line in body.trim_end().lines() {
        let _ = writeln!(out, "  {line}");
    }
}
