use super::*;
use proptest::prelude::*;

#[test]
fn a_runner_and_a_file_are_a_command_line() {
    assert_eq!(entry(Some("python"), Some("a.py")).unwrap(), "python -m pdb a.py");
    assert_eq!(
        entry(Some("PyTest"), Some("t.py")).unwrap(),
        "python -m pdb -m pytest -sq t.py"
    );
    assert_eq!(
        entry(Some("pytest"), Some("t.py::x")).unwrap(),
        "python -m pytest -sq t.py::x --trace  --tb=short"
    );
    assert_eq!(entry(None, None).unwrap_err(), FILE_REQUIRED);
    assert_eq!(entry(Some(""), Some("a.py")).unwrap_err(), RUNNER_REQUIRED);
    assert_eq!(
        entry(Some("node"), Some("a.js")).unwrap_err(),
        "Failure calling pdb:\nInvalid runner 'node'. Runner must be 'python' or 'pytest'."
    );
}

#[test]
fn only_the_first_of_several_commands_is_executed_unless_it_prints() {
    assert_eq!(first_of("n; n"), ("n", true));
    assert_eq!(first_of("n\nn"), ("n", true));
    for one in ["p a; b", "pp a;b", "print(';')", "n"] {
        assert_eq!(first_of(one), (one, false));
    }
}

#[test]
fn a_line_that_no_terminal_takes_is_refused_and_not_cut() {
    assert_eq!(too_long(&"x".repeat(4094)), None);
    let refused = too_long(&format!("p 1\n{}", "ä".repeat(2048))).unwrap();
    assert!(
        refused.contains("a line of 4096 bytes") && refused.contains("4094"),
        "{refused}"
    );
}

#[test]
fn a_program_that_does_not_come_back_is_reported_as_python_reports_it() {
    assert_eq!(
        timed_out("c", 30, "it's\n\"x\"\\"),
        r#"The command `c` has timed out. TimeoutError('Shell[pdb]: Read timeout after 30 secs. Read so far: \'it\\\'s\\n"x"\\\\\'')"#
    );
    assert_eq!(
        timed_out("c", 3, "a"),
        r#"The command `c` has timed out. TimeoutError("Shell[pdb]: Read timeout after 3 secs. Read so far: 'a'")"#
    );
    assert!(timed_out("c", 3, &"x".repeat(100_000)).len() < 5000);
}

#[test]
fn the_frame_is_the_file_of_the_current_line_of_where() {
    let output = "  /usr/lib/bdb.py(600)run()\n-> exec(cmd)\n> /testbed/a.py(6)<module>()\n-> x = 1";
    assert_eq!(frame(output).as_deref(), Some("/testbed/a.py"));
    assert_eq!(frame("*** no frame"), None);
}

#[test]
fn the_first_line_of_a_list_is_indented_as_the_second() {
    assert_eq!(indented("9  \ta\n 10  \tb"), " 9  \ta\n 10  \tb");
    for same in ["  1 a\n  2 b", "[EOF]", "", "x\n 2 b"] {
        assert_eq!(indented(same), same);
    }
}

#[test]
fn the_end_of_a_program_is_said_in_the_words_of_the_original() {
    let output = "1 passed\nThe program exited via sys.exit(). Exit status: 0\n> /a.py(1)<module>()";
    assert_eq!(
        exited(output),
        "1 passed\n\nReached the end of the program. Restarting the debugging session.\n> /a.py(1)<module>()"
    );
    assert_eq!(
        exited("The program exited via sys.exit()."),
        "\nReached the end of the program. Restarting the debugging session.\n"
    );
}

proptest! {
    #[test]
    fn no_output_breaks_a_reading(output in any::<String>()) {
        let _ = (spoken(&output), frame(&output), indented(&output), exited(&output), timed_out("c", 1, &output));
        let _ = (first_of(&output), too_long(&output), nowhere(&output));
    }
}
