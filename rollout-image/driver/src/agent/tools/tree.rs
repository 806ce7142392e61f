//! `listdir`, and `view` of a folder: a tree in ASCII, as `tree -a -v -F` draws it and the original trims it.

use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Prints `D`, then each entry as `KIND TARGET MODE PATH`, ended by a zero byte; `F` alone if it is not a folder. `$1`:
/// the folder, `$2`: the depth.
pub const SCRIPT: &str = r#"if [ -d "$1" ]; then echo D
find "$1" -mindepth 1 -maxdepth "$2" -printf '%y %Y %m %P\0' 2>/dev/null | head -c 200000
elif [ -e "$1" ]; then echo F
fi"#;

/// A name that sorts by the numbers in it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name(String);

#[derive(Debug, Default)]
struct Folder(BTreeMap<Name, Entry>);

#[derive(Debug, Default)]
struct Entry {
    mark: &'static str,
    below: Folder,
}

/// The tree of `root` from what [`SCRIPT`] printed.
pub fn drawn(root: &str, printed: &str) -> String {
    let mut top = Folder::default();
    // The last entry may be cut off.
    let whole = printed.rfind('\0').map_or("", |end| &printed[..end]);
    for line in whole.split('\0') {
        let mut words = line.splitn(4, ' ');
        if let (Some(kind), Some(target), Some(mode), Some(path)) =
            (words.next(), words.next(), words.next(), words.next())
        {
            top.add(path, mark(kind, target, mode));
        }
    }
    let mut out = format!("{root}/");
    top.draw("", &mut out);
    out
}

/// The mark after a name.
fn mark(kind: &str, target: &str, mode: &str) -> &'static str {
    let runs = u32::from_str_radix(mode, 8).is_ok_and(|mode| mode & 0o111 != 0);
    match (kind, target) {
        ("d", _) | ("l", "d") => "/",
        ("f", _) if runs => "*",
        _ => "",
    }
}

impl Folder {
    fn add(&mut self, path: &str, mark: &'static str) {
        let mut folder = self;
        let mut parts = path.split('/').peekable();
        while let Some(part) = parts.next() {
            let entry = folder.0.entry(Name(part.to_owned())).or_default();
            if parts.peek().is_none() {
                entry.mark = mark;
            }
            folder = &mut entry.below;
        }
    }

    fn draw(&self, before: &str, out: &mut String) {
        let mut entries = self.0.iter().peekable();
        while let Some((name, entry)) = entries.next() {
            out.push_str(&format!("\n{before}|-- {}{}", name.0.replace('\n', "?"), entry.mark));
            let rest = if entries.peek().is_some() { "|   " } else { "  " };
            entry.below.draw(&format!("{before}{rest}"), out);
        }
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        versions(self.0.as_bytes(), other.0.as_bytes())
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Compares byte by byte, and numbers by their value.
fn versions(mut a: &[u8], mut b: &[u8]) -> Ordering {
    loop {
        let (digits_a, digits_b) = (digits(a), digits(b));
        let counted = |digits: &[u8]| digits.first().is_some_and(|first| *first != b'0');
        let (order, step) = if counted(digits_a) && counted(digits_b) {
            let order = digits_a.len().cmp(&digits_b.len()).then_with(|| digits_a.cmp(digits_b));
            (order, digits_a.len())
        } else {
            match (a.first(), b.first()) {
                (None, None) => return Ordering::Equal,
                (x, y) => (x.cmp(&y), 1),
            }
        };
        if order != Ordering::Equal {
            return order;
        }
        (a, b) = (&a[step..], &b[step..]);
    }
}

fn digits(text: &[u8]) -> &[u8] {
    let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    &text[..count]
}

#[cfg(test)]
mod tests;
