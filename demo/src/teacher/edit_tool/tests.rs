use super::*;
use crate::tasks::Repair;
use crate::teacher::flips::possible;

fn function() -> Function {
    Function {
        file: "a.py".into(),
        repair: Repair {
            first: 11,
            last: 13,
            old: " == ".into(),
            new: " != ".into(),
        },
    }
}

fn excerpt<'a>(function: &'a Function, lines: &[&'a str]) -> Excerpt<'a> {
    Excerpt {
        function,
        lines: lines.to_vec(),
    }
}

fn command(answer: &Answer) -> &str {
    let inside = answer.content.split_once("```bash\n").unwrap().1;
    inside.strip_suffix("\n```").unwrap()
}

/// Runs a command with a tool in the place of the real one, which prints its arguments between brackets.
fn arguments(command: &str) -> String {
    let tool = r#"edit_via_str_replace() { printf '[%s]' "$@"; }; git() { printf 'undone '; }; sh() { :; }; F=a.py; "#;
    let ran = std::process::Command::new("bash")
        .args(["-c", &format!("{tool}{command}")])
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

#[test]
fn an_edit_names_the_line_with_its_blanks_and_quotes() {
    let function = function();
    let line = r#"    if mode == 'a"$(b)`' and value.startswith("(("):"#;
    let excerpt = excerpt(&function, &["    x = y", line, "        return 1"]);
    let flip = possible(&excerpt.lines)
        .into_iter()
        .find(|flip| flip.old == " == ")
        .unwrap();
    let answer = attempt(&excerpt, &flip, None);
    assert!(answer.content.starts_with("Edit.\n"), "{answer:?}");
    let new = line.replace(" == ", " != ");
    assert_eq!(arguments(command(&answer)), format!("[a.py][--][{line}][{new}]"));
    let again = attempt(&excerpt, &flip, Some(&flip));
    assert!(again.content.starts_with("Retry.\n"), "{again:?}");
    assert_eq!(arguments(command(&again)), format!("undone [a.py][--][{line}][{new}]"));
}

#[test]
fn a_short_line_is_named_together_with_a_neighbour() {
    let function = function();
    let excerpt = excerpt(&function, &["    if a:", "        break", "    return a is None"]);
    let shown = |old: &str| {
        let flip = possible(&excerpt.lines)
            .into_iter()
            .find(|flip| flip.old == old)
            .unwrap();
        arguments(command(&attempt(&excerpt, &flip, None)))
    };
    assert_eq!(
        shown(" break"),
        "[a.py][--][    if a:\n        break][    if a:\n        continue]"
    );
    assert_eq!(
        shown(" if "),
        "[a.py][--][    if a:\n        break][    if not a:\n        break]"
    );
}

#[test]
fn the_sentinel_is_the_presets() {
    assert_eq!(command(&give_up()), "echo MINI_SWE_AGENT_FINAL_OUTPUT");
    assert_eq!(agent()["bash"]["preset"], "MiniSweAgentPlus");
}
