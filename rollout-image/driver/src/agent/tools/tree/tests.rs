use super::*;

#[test]
fn a_folder_is_drawn_as_the_original_draws_it() {
    let printed =
        "f f 644 test.py\0d d 755 .git\0d d 755 pkg\0f f 755 pkg/run.sh\0l d 777 pkg/link\0f f 644 solution.py\0";
    assert_eq!(
        drawn("/testbed", printed),
        "/testbed/\n|-- .git/\n|-- pkg/\n|   |-- link/\n|   |-- run.sh*\n|-- solution.py\n|-- test.py"
    );
}

#[test]
fn what_is_below_the_last_folder_is_indented_by_two() {
    assert_eq!(drawn("/a", "d d 755 b\0f f 644 b/c\0"), "/a/\n|-- b/\n  |-- c");
}

#[test]
fn numbers_in_names_are_in_the_order_of_their_values() {
    let printed = "f f 644 v10\0f f 644 v9\0f f 644 B\0f f 644 a\0f f 644 v01\0";
    assert_eq!(drawn("/a", printed), "/a/\n|-- B\n|-- a\n|-- v01\n|-- v9\n|-- v10");
}

#[test]
fn an_entry_that_was_cut_off_is_left_out() {
    assert_eq!(drawn("/a", "f f 644 one\0f f 644 tw"), "/a/\n|-- one");
    assert_eq!(drawn("/a", ""), "/a/");
}
