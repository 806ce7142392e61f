use crate::arguments::{Arguments, What};
use clap::Parser;

fn parsed(words: &str) -> Result<What, clap::Error> {
    Arguments::try_parse_from(words.split_whitespace()).map(|arguments| arguments.what)
}

#[test]
fn a_set_is_named_as_people_or_reports_name_it() {
    for (given, wanted) in [
        ("train", "train"),
        ("tasks.train", "train"),
        ("heldout", "evaluate.heldout"),
        ("evaluate.heldout", "evaluate.heldout"),
        ("tasks.evaluate.heldout", "evaluate.heldout"),
        ("evaluate.train", "evaluate.train"),
    ] {
        let What::Tasks(tasks) = parsed(&format!("grpo tasks demo --set {given}")).unwrap() else {
            panic!("{given}");
        };
        assert_eq!(tasks.set, [wanted]);
        let What::Validated(validated) = parsed(&format!("grpo validated demo --set {given}")).unwrap() else {
            panic!("{given}");
        };
        assert_eq!(validated.set.as_deref(), Some(wanted));
    }
}

#[test]
fn weights_without_a_version_are_the_newest() {
    for (words, version) in [
        ("grpo copy demo out", None),
        ("grpo copy demo out --weights", Some("latest")),
        ("grpo copy demo out --weights a-v4", Some("a-v4")),
    ] {
        let What::Copy(copy) = parsed(words).unwrap() else {
            panic!("{words}");
        };
        assert_eq!(copy.weights.as_deref(), version, "{words}");
    }
}

#[test]
fn contradictions_are_refused() {
    for words in [
        "grpo tasks demo -f run.yaml",
        "grpo prepull demo --images list.txt",
        "grpo prepull demo --parallel 0",
        "grpo prepull demo --deadline soon",
        "grpo prepull demo --deadline 0s",
        "grpo copy demo out --format adapter",
        "grpo copy demo",
        "grpo tasks demo --set ../x",
    ] {
        assert!(parsed(words).is_err(), "{words}");
    }
}
