use super::*;
use crate::teacher::flips::possible;

/// As qwen-code 0.24.4 shows a command's output.
const SHOWN: &str = "Command: grep -n '' $F | sed -n '9,10p'\nDirectory: (root)\nOutput: 9:def f(a, b):\n\
                     10:    return a < b\nError: (none)\nExit Code: 0\nSignal: (none)\nProcess Group PGID: 77";

#[test]
fn the_first_line_of_an_output_stands_behind_its_name() {
    let function = Function {
        file: "a.py".into(),
        repair: Repair {
            first: 9,
            last: 10,
            old: " < ".into(),
            new: " <= ".into(),
        },
    };
    let excerpt = Excerpt::of(&function, SHOWN, code_of).unwrap();
    assert_eq!(excerpt.lines, ["def f(a, b):", "    return a < b"]);
    let flip = possible(&excerpt.lines)[0];
    let run = |command: &str| json!({"command": command, "is_background": false});
    assert_eq!(
        attempt(&excerpt, &flip, None).calls,
        [("run_shell_command", run("sed -i '9,10s/ < / <= /' $F; sh t"))]
    );
    let undone = "git checkout -q .; sed -i '9,10s/ < / <= /' $F; sh t";
    assert_eq!(
        attempt(&excerpt, &flip, Some(&flip)).calls,
        [("run_shell_command", run(undone))]
    );
}

#[test]
fn the_image_is_the_one_that_the_recipe_builds() {
    let recipe = include_str!("../../../../docs/images/qwen-code/Dockerfile");
    let version = recipe
        .lines()
        .find_map(|line| line.strip_prefix("LABEL org.opencontainers.image.version="))
        .unwrap();
    assert_eq!(IMAGE, format!("grpo.dev/cli/qwen-code:{version}"));
}
