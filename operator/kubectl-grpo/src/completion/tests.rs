use super::*;

fn completed(line: &str) -> Vec<String> {
    let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let answer = candidates(&words);
    answer
        .lines()
        .map(|line| line.split('\t').next().unwrap().to_owned())
        .collect()
}

#[test]
fn a_begun_command_is_completed() {
    assert_eq!(completed("pl"), ["plan", ":4"]);
    let all = completed("");
    for command in ["status", "plan", "wait", "completion"] {
        assert!(all.iter().any(|word| word == command), "{all:?}");
    }
    assert!(!all.iter().any(|word| word == "complete"), "{all:?}");
}

#[test]
fn flags_and_their_values_are_completed() {
    let flags = completed("plan --");
    for flag in ["--filename", "--nodes", "--server", "--output", "--namespace"] {
        assert!(flags.iter().any(|word| word == flag), "{flags:?}");
    }
    assert_eq!(completed("plan -o j"), ["json", ":4"]);
    assert_eq!(completed("plan --output t"), ["table", ":4"]);
}

#[test]
fn names_of_files_are_left_to_the_shell() {
    assert_eq!(completed("plan -f ru"), [":0"]);
}

#[test]
fn every_shell_gets_a_script_that_knows_the_commands() {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let script = script(shell);
        for word in ["kubectl-grpo", "plan", "wait", "prepull"] {
            assert!(script.contains(word), "{shell:?} lacks {word}");
        }
    }
    assert_eq!(
        script(Shell::Kubectl),
        "#!/bin/sh\nexec kubectl-grpo complete -- \"$@\"\n"
    );
}
