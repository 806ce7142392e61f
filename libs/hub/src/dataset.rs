//! Finds the files of a dataset's repository that hold the rows of a split.
//!
//! A dataset card (`README.md`) can name them, by configuration and split, under `configs:`. Otherwise the hub's
//! conventions apply: the split's name is the name of the file or its beginning, or the name of a folder
//! (huggingface.co/docs/hub/datasets-data-files-configuration, /datasets-file-names-and-splits).

use std::collections::{BTreeSet, HashSet};

use serde::Deserialize;

use crate::error::HubError;
use crate::repository::{RemoteFile, Repository};

/// The branch with the hub's Parquet conversion of datasets in other formats.
pub const CONVERTED: &str = "refs/convert/parquet";

/// Supported row formats.
const FORMATS: [&str; 4] = ["parquet", "jsonl", "ndjson", "json"];

/// Files beside the rows.
const NO_ROWS: [&str; 5] = [
    "README.md",
    "config.json",
    "dataset_info.json",
    "dataset_infos.json",
    "dataset_dict.json",
];

/// Synonyms of split names in names of files and folders.
const WORDS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "dev", "val"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

#[derive(Debug, Default, Deserialize)]
struct Card {
    #[serde(default)]
    configs: Vec<Config>,
}

#[derive(Debug, Deserialize)]
struct Config {
    config_name: String,
    #[serde(default)]
    default: bool,
    data_dir: Option<String>,
    data_files: Option<DataFiles>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum DataFiles {
    /// All files are the split `train`.
    Patterns(Patterns),
    Splits(Vec<SplitFiles>),
}

#[derive(Debug, Deserialize)]
struct SplitFiles {
    split: String,
    path: Patterns,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Patterns {
    One(String),
    Many(Vec<String>),
}

impl Patterns {
    fn all(&self) -> &[String] {
        match self {
            Self::One(pattern) => std::slice::from_ref(pattern),
            Self::Many(patterns) => patterns,
        }
    }
}

/// The files of a split, in the order of their rows. `card`: the text of `README.md`, if it exists.
pub fn split_files(
    repository: &Repository,
    card: Option<&str>,
    files: &[RemoteFile],
    config: Option<&str>,
    split: &str,
) -> Result<Vec<RemoteFile>, HubError> {
    let refused = |what: String| HubError::Selection {
        repository: repository.clone(),
        what,
    };
    let card = match card.and_then(front_matter) {
        Some(text) => serde_yaml_ng::from_str::<Card>(text)
            .map_err(|error| refused(format!("configs: in its README.md cannot be read: {error}")))?,
        None => Card::default(),
    };
    let config_name = config;
    let chosen = chosen_config(&card.configs, config).map_err(refused)?;
    let (folder, named) = match chosen {
        Some(config) => (config.data_dir.as_deref(), config.data_files.as_ref()),
        // Without a card, configurations are folders.
        None => (config, None),
    };
    let folder = folder
        .map(|folder| format!("{}/", folder.trim_matches('/')))
        .unwrap_or_default();
    let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let found: Vec<&str> = match named {
        Some(named) => {
            let patterns = patterns_of(named, split).map_err(refused)?;
            let matches = |path: &&str| {
                let inside = path.strip_prefix(folder.as_str());
                let is_wanted =
                    |inside: &str, pattern: &str| is_match(pattern, inside) && (!is_ignored(path) || pattern == inside);
                inside.is_some_and(|inside| patterns.iter().any(|pattern| is_wanted(inside, pattern)))
            };
            paths.iter().copied().filter(matches).collect()
        }
        None => {
            let found = by_convention(&paths, &folder, split);
            if let Some(several) = configurations(&found, config_name, split) {
                return Err(refused(format!(
                    "has several configurations; set config to one of {several}"
                )));
            }
            found
        }
    };
    if found.is_empty() {
        let there: Vec<&str> = paths.iter().copied().filter(|path| is_data(path)).take(5).collect();
        let there = match there.is_empty() {
            true => "no JSON lines and no parquet".to_owned(),
            false => format!("{}, ...", there.join(", ")),
        };
        return Err(refused(format!("has no file for the split {split:?}; it has {there}")));
    }
    if let Some(other) = found.iter().find(|path| !is_data(path)) {
        return Err(refused(format!(
            "has the split {split:?} in {other}, which is neither JSON lines nor parquet; set revision: {CONVERTED}"
        )));
    }
    let found: HashSet<&str> = found.into_iter().collect();
    let mut chosen: Vec<_> = files
        .iter()
        .filter(|file| found.contains(file.path.as_str()))
        .cloned()
        .collect();
    chosen.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(chosen)
}

fn front_matter(card: &str) -> Option<&str> {
    let rest = card.trim_start_matches('\u{feff}').strip_prefix("---")?;
    rest.split_once("\n---").map(|(text, _)| text)
}

fn chosen_config<'a>(configs: &'a [Config], wanted: Option<&str>) -> Result<Option<&'a Config>, String> {
    let names = || {
        configs
            .iter()
            .map(|config| config.config_name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let found = |name: &str| configs.iter().find(|config| config.config_name == name);
    match (configs, wanted) {
        ([], _) => Ok(None),
        (_, Some(name)) => {
            let none = || format!("has no configuration {name:?}; it has {}", names());
            found(name).map(Some).ok_or_else(none)
        }
        ([only], None) => Ok(Some(only)),
        _ => {
            let default = configs
                .iter()
                .find(|config| config.default)
                .or_else(|| found("default"));
            let which = || {
                format!(
                    "has several configurations and no default; set config to one of {}",
                    names()
                )
            };
            default.map(Some).ok_or_else(which)
        }
    }
}

fn patterns_of<'a>(named: &'a DataFiles, split: &str) -> Result<Vec<&'a str>, String> {
    let patterns: Vec<&str> = match named {
        DataFiles::Patterns(patterns) if split == "train" => patterns.all().iter().map(String::as_str).collect(),
        DataFiles::Patterns(_) => Vec::new(),
        DataFiles::Splits(splits) => {
            let of_split = splits.iter().filter(|one| one.split == split);
            of_split.flat_map(|one| one.path.all()).map(String::as_str).collect()
        }
    };
    if !patterns.is_empty() {
        return Ok(patterns);
    }
    let splits = match named {
        DataFiles::Patterns(_) => "train".to_owned(),
        DataFiles::Splits(splits) => splits
            .iter()
            .map(|one| one.split.as_str())
            .collect::<Vec<_>>()
            .join(", "),
    };
    Err(format!("has no split {split:?}; it has {splits}"))
}

/// The hub's patterns: `*` within a folder, `**` across folders, `?`. Iterative, so that no pattern takes long.
fn is_match(pattern: &str, path: &str) -> bool {
    let (pattern, path): (Vec<char>, Vec<char>) = (pattern.chars().collect(), path.chars().collect());
    // reached[at]: pattern[..taken] matches path[..at].
    let mut reached = vec![false; path.len() + 1];
    reached[0] = true;
    let mut taken = 0;
    while taken < pattern.len() {
        let deep = pattern[taken..].starts_with(&['*', '*']);
        let mut next = vec![false; path.len() + 1];
        for at in 0..=path.len() {
            next[at] = match pattern[taken] {
                '*' => reached[at] || at > 0 && next[at - 1] && (deep || path[at - 1] != '/'),
                '?' => at > 0 && reached[at - 1] && path[at - 1] != '/',
                letter => at > 0 && reached[at - 1] && path[at - 1] == letter,
            };
        }
        taken += if deep { 2 } else { 1 };
        // `a/**/b` also matches `a/b`.
        if deep && pattern.get(taken) == Some(&'/') {
            let with_slash = (0..=path.len()).map(|at| reached[at] || at > 0 && next[at - 1] && path[at - 1] == '/');
            next = with_slash.collect();
            taken += 1;
        }
        reached = next;
    }
    reached[path.len()]
}

/// The configurations of `<configuration>/<split>/<file>`, the layout of the hub's conversion, if there are several and
/// none was chosen.
fn configurations(found: &[&str], config: Option<&str>, split: &str) -> Option<String> {
    let first = |path: &&str| {
        let mut parts = path.split('/');
        let (first, second) = (parts.next()?.to_owned(), parts.next()?);
        (second == split && parts.next().is_some()).then_some(first)
    };
    let folders: BTreeSet<String> = found.iter().filter_map(first).collect();
    let several = config.is_none() && folders.len() > 1;
    several.then(|| folders.into_iter().collect::<Vec<_>>().join(", "))
}

/// The split in `<split>-00000-of-00002.parquet`.
fn sharded(file: &str) -> Option<&str> {
    let (before, after) = file.split_once("-of-")?;
    let (split, number) = before.rsplit_once('-')?;
    let digits = |text: &str| text.len() >= 5 && text.bytes().take(5).all(|byte| byte.is_ascii_digit());
    (digits(number) && digits(after)).then_some(split)
}

/// Files whose name, or otherwise whose folder, is the split's. If no name is a split's, all files are the split
/// `train`.
fn by_convention<'a>(paths: &[&'a str], folder: &str, split: &str) -> Vec<&'a str> {
    let data: Vec<(&str, &str)> = paths
        .iter()
        .filter_map(|path| Some((*path, path.strip_prefix(folder)?)))
        .filter(|(path, _)| is_data(path))
        .collect();
    let name = |path: &'a str| path.rsplit('/').next().unwrap_or(path);
    let shards = data.iter().map(|(path, _)| *path);
    let shards: Vec<&str> = shards.filter(|path| sharded(name(path)) == Some(split)).collect();
    if !shards.is_empty() {
        return shards;
    }
    let of = |split: &str| -> Vec<&'a str> {
        let known = WORDS.iter().find(|(name, _)| *name == split);
        let words = known.map_or(std::slice::from_ref(&split), |(_, words)| *words);
        let in_file = |inside: &str| {
            words
                .iter()
                .any(|word| names(word, inside.rsplit('/').next().unwrap_or(inside)))
        };
        let in_folder = |inside: &str| {
            let mut folders = inside.split('/').rev().skip(1);
            folders.any(|part| words.contains(&part))
        };
        let files: Vec<_> = data
            .iter()
            .filter(|(_, inside)| in_file(inside))
            .map(|(path, _)| *path)
            .collect();
        match files.is_empty() {
            true => data
                .iter()
                .filter(|(_, inside)| in_folder(inside))
                .map(|(path, _)| *path)
                .collect(),
            false => files,
        }
    };
    let found = of(split);
    let unnamed = found.is_empty() && split == "train" && WORDS.iter().all(|(name, _)| of(name).is_empty());
    match unnamed {
        true => data.iter().map(|(path, _)| *path).collect(),
        false => found,
    }
}

/// Whether a file's name contains this as a whole word: `train.jsonl`, `train-00000-of-00002.parquet`,
/// `my_train_file.json`.
fn names(word: &str, file: &str) -> bool {
    let ends = |letter: Option<char>| letter.is_none_or(|letter| !letter.is_ascii_alphanumeric());
    let found = file.match_indices(word);
    let mut alone =
        found.map(|(at, _)| ends(file[..at].chars().next_back()) && ends(file[at + word.len()..].chars().next()));
    alone.any(|alone| alone)
}

fn is_data(path: &str) -> bool {
    let end = path.rsplit('.').next().unwrap_or_default();
    FORMATS.contains(&end) && !is_ignored(path)
}

/// Files without rows, unless a card names them.
fn is_ignored(path: &str) -> bool {
    let hidden = path
        .split('/')
        .any(|part| part.starts_with('.') || part.starts_with("__"));
    hidden || NO_ROWS.contains(&path.rsplit('/').next().unwrap_or(path))
}

#[cfg(test)]
mod tests;
