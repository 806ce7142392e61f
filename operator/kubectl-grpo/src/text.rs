//! Bars, tables, paragraphs and durations, as plain text for terminals and files.

use jiff::{SignedDuration, Timestamp};

const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/// `done` of `total` as a bar of `width` characters.
pub fn bar(done: u64, total: u64, width: usize) -> String {
    let cells = width as u64 * 8;
    let filled = match total {
        0 => 0,
        total => (u128::from(done.min(total)) * u128::from(cells) / u128::from(total)) as u64,
    };
    let (whole, part) = ((filled / 8) as usize, (filled % 8) as usize);
    let mut bar = "█".repeat(whole);
    if whole < width {
        bar.push(EIGHTHS[part]);
        bar.push_str(&"·".repeat(width - whole - 1));
    }
    bar.replace(' ', "·")
}

/// Columns as wide as their widest cell, three characters apart, as in kubectl.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("   ").trim_end().to_owned() + "\n"
    };
    let mut out = line(head.to_vec());
    for row in rows {
        out += &line(row.iter().map(String::as_str).collect());
    }
    out
}

/// A text in lines of at most `width` characters, each after `indent`. A longer word has a line of its own.
pub fn paragraph(text: &str, indent: &str, width: usize) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let mut length = 0;
        for word in line.split_whitespace() {
            let wide = word.chars().count();
            if length > 0 && indent.chars().count() + length + 1 + wide > width {
                out.push('\n');
                length = 0;
            }
            match length {
                0 => out.push_str(indent),
                _ => out.push(' '),
            }
            length += wide + usize::from(length > 0);
            out.push_str(word);
        }
        out.push('\n');
    }
    out
}

/// The time since then, as in kubectl: at most two units.
pub fn since(then: Timestamp, now: Timestamp) -> String {
    span(now.duration_since(then))
}

/// A duration in at most two units; never negative.
pub fn span(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    let (days, hours, minutes, rest) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let pair = |large: i64, of: &str, small: i64, unit: &str| match small {
        0 => format!("{large}{of}"),
        _ => format!("{large}{of}{small}{unit}"),
    };
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest}s"),
        (0, 0, _) => pair(minutes, "m", rest, "s"),
        (0, ..) => pair(hours, "h", minutes, "m"),
        _ => pair(days, "d", hours, "h"),
    }
}

/// The text, cut to this many characters.
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

#[cfg(test)]
mod tests;
