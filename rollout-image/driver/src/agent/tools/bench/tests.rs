use super::*;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn a_path_stays_in_the_working_directory() {
    for (path, full) in [
        ("a.py", Some("/testbed/a.py")),
        ("./b/../a.py", Some("/testbed/a.py")),
        ("/testbed/a.py", Some("/testbed/a.py")),
        (".", Some("/testbed")),
        ("", Some("/testbed")),
        ("../testbed/a.py", Some("/testbed/a.py")),
        ("../etc/passwd", None),
        ("/etc/passwd", None),
        ("/testbed2/a.py", None),
        ("../../..", None),
    ] {
        assert_eq!(inside("/testbed", path).as_deref(), full, "{path}");
    }
}

/// The exit status, and what bash printed.
fn written(file: &Path, text: &str) -> (Option<i32>, String) {
    let mut bash = Command::new("/bin/bash");
    bash.args(["--noprofile", "--norc", "-c", WRITE, "tool"]).arg(file);
    let mut bash = bash.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A shell that cannot open the file reads nothing.
    let _ = bash.stdin.take().unwrap().write_all(text.as_bytes());
    let ended = bash.wait_with_output().unwrap();
    (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
}

/// Otherwise Python would run the code from before a change of the same size.
#[test]
fn two_changes_of_a_file_are_never_of_one_second() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.py");
    let mut seconds = Vec::new();
    for text in ["a * b", "a + b", "a - b", "a / b"] {
        assert_eq!(written(&file, text), (Some(0), String::new()));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        seconds.push(std::fs::metadata(&file).unwrap().mtime());
    }
    assert!(seconds.windows(2).all(|pair| pair[0] != pair[1]), "{seconds:?}");
    let (code, printed) = written(&folder.path().join("none/a.py"), "");
    assert_eq!(code, Some(1));
    assert!(printed.starts_with("tool: line 1: "), "{printed}");
}
