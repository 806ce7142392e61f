//! Names that are gone and must not come back: home-made words for which the field has others.

use regex::Regex;

use crate::tree::{files, hold};

/// Folder, and the identifiers that must not exist below it.
const GONE: [(&str, &str); 24] = [
    (
        "sandbox-image/gateway/src",
        r"\b(Held|promised|Shelf|shelf|Witness|testimon\w*|anew|stray|strays)\b",
    ),
    ("sandbox-image/gateway/src", r"\bmod (grow|turns|seen|shelf)\b"),
    ("libs/sandbox-protocol/src", r"\bHeld\b"),
    ("operator/co", r"\bmod (walls|words|ends|waits|memory|mirror|child)\b"),
    (
        "operator",
        r"\b(struct|enum|type) (Mirror|Mirrors|Holds|Note|Child|Memory)\b",
    ),
    ("operator", r"\b(let_in|put_back)\b"),
    (
        "rollout-image/driver/src",
        r"\b(struct|enum) (Ledger|Transcript|Stop)\b",
    ),
    ("rollout-image/driver/src", r"\bfn (act|work|left|aim|synced|noting)\b"),
    ("libs/records/src", r"\bEpisodeHome\b"),
    ("trainer-image/trainer/src", r"\b(Mini|Slope|Ends)\b"),
    ("trainer-image/trainer/src", r"\bfn (flow|line|copies)\b"),
    ("libs/native/src", r"\b(Flight|Meeting|told)\b"),
    ("libs/native/src", r"\bmod (flight|meeting)\b"),
    ("inference-image", r"\b(Door|Guarded)\b"),
    ("operator/kubectl-grpo", r"\bDoor\b"),
    ("trainer-image", r"\bDoor\b"),
    ("", r"\b(SpecIsSound|NotLookedAt)\b"),
    ("", r"\b(struct|enum|type) Seen\b"),
    ("crds/src", r"\bexpert_parallel\b"),
    ("operator", r"\b(struct|enum|type) (Plan|Order|Fault)\b"),
    ("rollout-image", r"\b(struct|enum|type) (Plan|Order|Fault)\b"),
    ("sandbox-image", r"\b(struct|enum|type) (Plan|Order|Fault)\b"),
    ("trainer-image", r"\b(struct|enum|type) (Plan|Order|Fault)\b"),
    ("libs", r"\b(struct|enum|type) (Plan|Order|Fault)\b"),
];

/// Lines that still use one.
const LEFT: usize = 0;

#[test]
fn names_that_are_gone_do_not_come_back() {
    let files = files(&["rs"]);
    let mut found = Vec::new();
    for (folder, pattern) in GONE {
        let pattern = Regex::new(pattern).unwrap();
        for file in files.iter().filter(|file| file.path.starts_with(folder)) {
            if file.path.starts_with("e2e/house") {
                continue;
            }
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
