use super::*;
use clap::CommandFactory;
use proptest::prelude::*;

fn parsed(line: &str) -> Result<Arguments, String> {
    Arguments::try_parse_from(std::iter::once("kubectl-grpo").chain(line.split_whitespace())).map_err(|e| e.to_string())
}

#[test]
fn the_command_line_is_sound() {
    Arguments::command().debug_assert();
}

#[test]
fn kubectls_options_may_stand_anywhere() {
    for line in [
        "-n team status demo",
        "status demo -n team",
        "status --namespace=team grun/demo",
    ] {
        let Arguments { cluster, what } = parsed(line).unwrap();
        let What::Status(status) = what else { panic!("{line}") };
        assert_eq!(
            (cluster.namespace.as_deref(), status.run.as_deref()),
            (Some("team"), Some("demo")),
            "{line}"
        );
    }
}

#[test]
fn what_cannot_be_meant_is_refused_with_words() {
    for (line, words) in [
        ("status Demo", "lower-case"),
        ("status pod/demo", "pod is no GrpoRun"),
        ("status --watch", "RUN"),
        ("episodes", "RUN"),
        ("episodes demo --iteration 1 --set heldout", "cannot be used with"),
        ("episodes demo --weights l1-v2", "--set"),
        ("episodes demo --outcome lost", "unfinished"),
        ("episodes demo --set ../x", "letters"),
        ("validated", "RUN"),
        ("validated demo --set ../x", "letters"),
        ("logs demo --since yesterday", "30s, 10m"),
        ("logs demo --since=-10m", "30s, 10m"),
    ] {
        let error = parsed(line).unwrap_err();
        assert!(error.contains(words), "{line}: {error}");
    }
}

#[test]
fn an_episode_of_a_copied_store_needs_no_run() {
    let shown = |line: &str| {
        let What::Show(show) = parsed(line).unwrap().what else {
            panic!("{line}")
        };
        show.checked()
    };
    assert_eq!(shown("show a__g0__i0 --from out/store"), Ok((None, "a__g0__i0".into())));
    assert_eq!(
        shown("show demo a__g0__i0"),
        Ok((Some("demo".into()), "a__g0__i0".into()))
    );
    assert!(
        shown("show a__g0__i0")
            .unwrap_err()
            .contains("kubectl grpo show RUN EPISODE")
    );
    assert!(shown("show demo ../secret").is_err());
}

proptest! {
    #[test]
    fn a_name_that_is_taken_can_be_put_into_a_path(text in "\\PC{0,60}") {
        if let Ok(name) = run_name(&text) {
            prop_assert!(!name.contains('/') && !name.is_empty() && name.is_ascii());
            prop_assert!(!name.split('.').any(str::is_empty) || name.contains(".."));
        }
    }

    #[test]
    fn words_for_an_episode_never_climb(text in "[a-z./_-]{0,30}") {
        if let Ok(words) = episode_words(&text) {
            prop_assert!(!words.split('/').any(|part| part == ".."));
        }
    }
}
