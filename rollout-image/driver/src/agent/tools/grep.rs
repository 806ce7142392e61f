//! `grep`: lines that match, by file.

/// The default number of matches that are shown.
pub const MATCHES: i64 = 100;
/// The most characters of a line that are shown.
const LONGEST: usize = 300;

/// `$1`: the pattern; `$2`: the path, which may be a glob pattern; `$3`: the number of lines; then options of grep.
///
/// The original quoted the path, so that the glob patterns it asks for never matched, and left the order of files to
/// the file system.
pub const SCRIPT: &str = r#"IFS=
pattern=$1; path=$2; most=$3
shift 3
grep -n -r -H -I "$@" -e "$pattern" -- $path 2>&1 |
    grep -v '/.git/' | grep -v '__pycache__' | grep -v '/node_modules/' |
    LC_ALL=C sort -s -t: -k1,1 | head -n "$most""#;

/// The answer. `most`: the number of requested lines.
pub fn shown(output: &str, pattern: &str, path: Option<&str>, most: i64, numbered: bool) -> String {
    let output = output.trim();
    if output.is_empty() {
        let place = path.map_or("in repository".to_owned(), |path| format!("in {path}"));
        return format!("No matches found for pattern '{pattern}' {place}.");
    }
    let lines: Vec<&str> = output.split('\n').collect();
    if let Some(error) = lines[0].strip_prefix("grep: ") {
        return format!("Grep error: {error}");
    }
    let mut out = match lines.len() as i64 >= most {
        true => format!("Showing first {} matches (search limit reached):\n", lines.len()),
        false => format!("Found {} matches:\n", lines.len()),
    };
    let mut current = None;
    for line in lines {
        let mut parts = line.splitn(3, ':');
        let (Some(file), Some(number), Some(text)) = (parts.next(), parts.next(), parts.next()) else {
            out.push_str(&format!("\n{line}"));
            continue;
        };
        if current != Some(file) {
            if current.is_some() {
                out.push('\n');
            }
            out.push_str(&format!("\n=== {file} ==="));
            current = Some(file);
        }
        let text = match text.char_indices().nth(LONGEST - 1) {
            Some(_) => format!("{}...", text.chars().take(LONGEST).collect::<String>()),
            None => text.to_owned(),
        };
        match numbered {
            true => out.push_str(&format!("\n{number:>4}: {text}")),
            false => out.push_str(&format!("\n{text}")),
        }
    }
    out
}

pub fn failed(output: &str) -> String {
    format!("Grep command failed: {output}")
}

#[cfg(test)]
mod tests;
