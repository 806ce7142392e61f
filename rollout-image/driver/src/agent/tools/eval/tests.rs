use super::*;

#[test]
fn what_differs_from_run_to_run_is_removed() {
    let output = "\n==========\nplatform linux -- Python 3.12\nrootdir: /testbed\nplugins: x\ncachedir: .c\nRan 3 tests in \
                  0.02s\n----------\n= FAILURES =\n";
    assert_eq!(cleaned(output), "====\n\n----\n= FAILURES =");
}

#[test]
fn before_the_summary_each_line_stands_once_and_the_last_twenty_are_kept() {
    let lines: String = (0..30).map(|number| format!("line {number}\nagain\n")).collect();
    let shown = cleaned(&format!("{lines}=== short test summary info ===\nagain\nagain\n"));
    let kept: Vec<&str> = shown.lines().collect();
    assert_eq!(kept[0], "line 11");
    assert_eq!(kept[18], "line 29");
    assert_eq!(kept[19..], ["=== ", "short test summary info ===", "again", "again"]);
}

#[test]
fn the_time_of_a_command_is_named() {
    assert_eq!(
        timed_out(30),
        "Timeout expired after 30 seconds. The command took too long to execute. Please check your code for infinite \
         loops, long-running operations, or other performance issues."
    );
}
