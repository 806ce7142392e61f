//! Finds the command of a grading script that needs a package index, from the script's text.
//!
//! Only commands at the beginning of a line, or after `;`, `&`, `|`, a parenthesis or a backquote, count. Other text,
//! such as a test patch in a here-document, is not a command. A row with an unrecognized command is not named in the
//! report; no row is skipped for its commands.

/// The longest command in a message, in characters.
const LONGEST: usize = 60;
/// Words that stand before a command.
const PREFIXES: [&str; 12] = [
    "sudo", "env", "exec", "time", "command", "nohup", "then", "do", "else", "if", "!", "{",
];
/// Options that avoid the index.
const OFFLINE: [&str; 3] = ["--no-index", "--offline", "--dry-run"];
/// Options of pip whose value is the next word.
const WITH_VALUE: [&str; 8] = [
    "-c",
    "-r",
    "-t",
    "-i",
    "-f",
    "--constraint",
    "--requirement",
    "--target",
];

/// The first command of a script that needs a package index.
pub fn command(script: &str) -> Option<String> {
    let lines = lines(script);
    let mut commands = lines.iter().flat_map(|line| simple_commands(line));
    let found = commands.find(|words| needs_an_index(words))?;
    Some(found.join(" ").chars().take(LONGEST).collect())
}

/// The command lines of a script: continued lines are joined, here-documents and comments are left out.
fn lines(script: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut continued = false;
    let mut text = script.lines();
    while let Some(line) = text.next() {
        let (line, is_continued) = match line.strip_suffix('\\') {
            Some(line) => (line, true),
            None => (line, false),
        };
        match lines.last_mut() {
            Some(last) if continued => *last += line,
            _ => lines.push(line.to_owned()),
        }
        continued = is_continued;
        if let Some(end) = here_document(line) {
            text.by_ref().find(|line| line.trim_start_matches('\t') == end);
        }
    }
    lines.retain(|line| !line.trim_start().starts_with('#'));
    lines
}

/// The word that ends the here-document which begins on this line.
fn here_document(line: &str) -> Option<String> {
    let (before, after) = line.split_once("<<")?;
    // `<<<` is a here-string.
    if after.starts_with('<') || before.ends_with('<') {
        return None;
    }
    let word = after.trim_start_matches('-').split_whitespace().next()?;
    let word = word.trim_matches(['\'', '"', '\\']);
    // Excludes a shift of numbers.
    word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        .then(|| word.to_owned())
}

/// The words of each command of a line, without its prefixes.
fn simple_commands(line: &str) -> Vec<Vec<&str>> {
    let parts = line.split([';', '|', '&', '(', ')', '`']);
    let words = parts.map(|part| {
        let words = part.split_whitespace().map(|word| word.trim_matches(['\'', '"']));
        words.skip_while(|word| is_prefix(word)).collect::<Vec<_>>()
    });
    words.filter(|words| !words.is_empty()).collect()
}

fn is_prefix(word: &str) -> bool {
    let is_assignment = word
        .split_once('=')
        .is_some_and(|(name, _)| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'));
    is_assignment || PREFIXES.contains(&word)
}

fn needs_an_index(words: &[&str]) -> bool {
    let Some((program, arguments)) = words.split_first() else {
        return false;
    };
    if arguments.iter().any(|argument| OFFLINE.contains(argument)) {
        return false;
    }
    let program = program.rsplit('/').next().unwrap_or(program);
    let version = |name: &str| {
        let rest = program.strip_prefix(name);
        rest.is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.'))
    };
    if version("python") {
        return arguments.first() == Some(&"-m") && needs_an_index(&arguments[1..]);
    }
    if version("pip") {
        return pip_needs_an_index(arguments);
    }
    // The words that are not options: `apt-get -y install x` installs.
    let mut verbs = arguments.iter().filter(|word| !word.starts_with('-')).copied();
    let first = verbs.next().unwrap_or_default();
    let second = verbs.next().unwrap_or_default();
    match program {
        "bash" | "sh" => {
            let at = arguments
                .iter()
                .position(|word| word.starts_with('-') && word.ends_with('c'));
            at.is_some_and(|at| needs_an_index(&arguments[at + 1..]))
        }
        "uv" => match first {
            "pip" => second == "sync" || pip_needs_an_index(&after(arguments, "pip")),
            "tool" => second == "install",
            _ => ["add", "sync", "lock"].contains(&first),
        },
        "conda" | "mamba" | "micromamba" => match first {
            "env" => ["create", "update"].contains(&second),
            _ => ["install", "create", "update", "upgrade"].contains(&first),
        },
        "apt" | "apt-get" => ["install", "update", "upgrade", "build-dep"].contains(&first),
        "apk" => ["add", "update"].contains(&first),
        "yum" | "dnf" => first == "install",
        "npm" | "pnpm" => ["install", "i", "ci", "add"].contains(&first),
        "yarn" => ["", "install", "add"].contains(&first),
        "cargo" => ["fetch", "install", "add"].contains(&first),
        "go" => first == "get" || first == "install" || (first == "mod" && ["download", "tidy"].contains(&second)),
        "gem" => first == "install",
        "bundle" => ["", "install", "update"].contains(&first),
        "composer" => ["install", "update", "require"].contains(&first),
        "poetry" | "pipenv" => ["install", "add", "update", "sync"].contains(&first),
        _ => false,
    }
}

fn after<'a>(words: &[&'a str], word: &str) -> Vec<&'a str> {
    words
        .iter()
        .copied()
        .skip_while(|other| *other != word)
        .skip(1)
        .collect()
}

/// A folder needs no index if pip fetches neither its dependencies nor its build requirements.
fn pip_needs_an_index(arguments: &[&str]) -> bool {
    let mut words = arguments.iter().copied().skip_while(|word| word.starts_with('-'));
    match words.next() {
        Some("install") => {}
        Some(verb) => return ["download", "wheel"].contains(&verb),
        None => return false,
    }
    let options: Vec<&str> = words.collect();
    let has = |option: &str| options.contains(&option);
    if !(has("--no-deps") && has("--no-build-isolation")) {
        return true;
    }
    let mut targets = Vec::new();
    let mut words = options.iter();
    while let Some(word) = words.next() {
        match *word {
            "-r" | "--requirement" => return true,
            word if WITH_VALUE.contains(&word) => drop(words.next()),
            word if word.starts_with('-') => {}
            word => targets.push(word),
        }
    }
    !targets.iter().all(|target| is_folder(target))
}

fn is_folder(target: &str) -> bool {
    target.starts_with(['.', '/']) || target.ends_with(".whl")
}

#[cfg(test)]
mod tests;
