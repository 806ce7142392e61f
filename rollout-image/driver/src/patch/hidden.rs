//! Paths that a task hides from the policy (`hide` of its row), such as tests that only the grader has.
//!
//! They are removed from the policy's sandbox, not from the grader's. A policy that guesses such a name can write a
//! file there, and its patch would replace the grader's file.

/// Hidden paths for commands, which start in the image's working directory: a relative path counts from `directory`,
/// that of the repository. An empty one names nothing.
pub fn absolute(directory: &str, hidden: &[String]) -> Vec<String> {
    let whole = |path: &String| match path.is_empty() || path.starts_with('/') {
        true => path.clone(),
        false => format!("{directory}/{path}"),
    };
    hidden.iter().map(whole).collect()
}

/// Hidden paths inside the repository, each as its parts from the repository's root.
#[derive(Clone, Debug, Default)]
pub struct Hidden(Vec<Vec<Vec<u8>>>);

impl Hidden {
    /// `directory`: of the repository. Paths outside of it are no part of a patch.
    pub fn of(directory: &str, hidden: &[String]) -> Self {
        let root = parts(directory.as_bytes());
        let inside = |path: &String| {
            let whole = parts(path.as_bytes());
            let inner = whole.strip_prefix(root.as_slice())?;
            (!inner.is_empty()).then(|| inner.to_vec())
        };
        Self(absolute(directory, hidden).iter().filter_map(inside).collect())
    }

    /// Whether a change of `path` is one of a hidden file: the file itself, a file below a hidden folder, or a file or
    /// link in place of a folder that has hidden files. `is_quoted`: special bytes of the name are escaped as git does.
    pub fn covers(&self, path: &str, is_quoted: bool) -> bool {
        if path.is_empty() || self.0.is_empty() {
            return false;
        }
        let path = match is_quoted {
            true => parts(&unquoted(path)),
            false => parts(path.as_bytes()),
        };
        let covers = |hidden: &Vec<Vec<u8>>| path.starts_with(hidden) || hidden.starts_with(&path);
        self.0.iter().any(covers)
    }
}

fn parts(path: &[u8]) -> Vec<Vec<u8>> {
    let mut parts: Vec<Vec<u8>> = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop();
            }
            part => parts.push(part.to_vec()),
        }
    }
    parts
}

/// The bytes of a name from between git's quotes.
fn unquoted(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = name.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        let digits = rest.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(byte) = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            bytes.push(byte);
            rest = &rest[3..];
        } else if let Some((escape, after)) = rest.split_first() {
            bytes.push(match *escape {
                b'a' => 7,
                b'b' => 8,
                b't' => b'\t',
                b'n' => b'\n',
                b'v' => 11,
                b'f' => 12,
                b'r' => b'\r',
                other => other,
            });
            rest = after;
        }
    }
    bytes
}

#[cfg(test)]
mod tests;
