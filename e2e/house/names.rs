//! Names that were removed and must not return: home-made words for which the field has its own.

use regex::Regex;

use crate::tree::{files, hold};

/// Folders, and identifiers that must not exist below them.
const GONE: [(&str, &str); 28] = [
    (
        "sandbox-image/gateway/src",
        r"\b(Held|promised|Shelf|shelf|Witness|testimon\w*|anew|stray|strays)\b",
    ),
    ("sandbox-image/gateway/src", r"\bmod (grow|turns|seen|shelf)\b"),
    ("libs/sandbox-protocol/src", r"\bHeld\b"),
    ("operator/core", r"\bmod (walls|words|ends|waits|memory|mirror|child)\b"),
    (
        "operator/controllers",
        r"\bmod (walls|words|ends|waits|memory|mirror|child)\b",
    ),
    (
        "operator",
        r"\b(struct|enum|type) (Mirror|Mirrors|Holds|Note|Child|Memory)\b",
    ),
    ("operator", r"\b(let_in|put_back)\b"),
    (
        "rollout-image/driver/src",
        r"\b(struct|enum) (Ledger|Transcript|Stop)\b",
    ),
    // The agent has an `act` of its own.
    ("rollout-image/driver/src/episode", r"\bfn act\b"),
    ("rollout-image/driver/src", r"\bfn (work|left|aim|synced|noting)\b"),
    ("rollout-image/driver/src/iterate", r"\bfn follow\b"),
    ("libs/records/src", r"\bEpisodeHome\b"),
    ("trainer-image", r"\bpub (start|engine): Option<"),
    ("trainer-image/trainer/src", r"\b(Mini|Slope|Ends)\b"),
    ("trainer-image/trainer/src", r"\bfn (flow|line|copies)\b"),
    ("libs/native/src", r"\b(Flight|Meeting|told)\b"),
    ("libs/native/src", r"\bmod (flight|meeting)\b"),
    ("inference-image", r"\b(Door|Guarded)\b"),
    ("operator/kubectl-grpo", r"\bDoor\b"),
    ("trainer-image", r"\bDoor\b"),
    ("", r"\b(SpecIsSound|NotLookedAt|PutBack)\b"),
    ("", r"\b(struct|enum|type) Seen\b"),
    ("crds/src", r"\bexpert_parallel\b"),
    ("operator", r"\b(struct|enum|type) (Plan|Order|Fault)\b"),
    ("rollout-image", r"\b(struct|enum|type) (Plan|Order|Fault)\b"),
    ("sandbox-image", r"\b(struct|enum|type) (Plan|Order|Fault)\b"),
    ("trainer-image", r"\b(struct|enum|type) (Plan|Order|Fault)\b"),
    ("libs", r"\b(struct|enum|type) (Plan|Order|Fault)\b"),
];

/// Lines that still use such a name.
const LEFT: usize = 0;

#[test]
fn names_that_are_gone_do_not_come_back() {
    // The changelog names them.
    let files: Vec<_> = files(&["rs", "yaml", "txt", "md"])
        .into_iter()
        .filter(|file| file.path != "CHANGELOG.md" && !file.path.starts_with("e2e/house/"))
        .collect();
    let mut found = Vec::new();
    for (folder, pattern) in GONE {
        let pattern = Regex::new(pattern).unwrap();
        let below: Vec<_> = files.iter().filter(|file| file.path.starts_with(folder)).collect();
        assert!(
            !below.is_empty(),
            "{folder} holds no files: name the folder to which they moved"
        );
        for file in below {
            for (number, line) in file.text.lines().enumerate() {
                let code = line.trim_start();
                if !code.starts_with("//") && pattern.is_match(code) {
                    found.push(format!("{}:{}: {}", file.path, number + 1, code));
                }
            }
        }
    }
    hold("lines with a name that is gone", LEFT, &found);
}
