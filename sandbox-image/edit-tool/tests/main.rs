//! The command as a process: it answers like the script of mini-swe-agent-plus, and keeps its limits.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

type Files = BTreeMap<OsString, Vec<u8>>;

fn run(folder: &Path, arguments: &[impl AsRef<std::ffi::OsStr>]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_edit_via_str_replace"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap()
}

/// Bytes from the code points with the same numbers.
fn bytes(text: &Value) -> Vec<u8> {
    text.as_str()
        .unwrap()
        .chars()
        .map(|it| u8::try_from(u32::from(it)).unwrap())
        .collect()
}

fn files(listed: &Value) -> Files {
    let name = |name: &String| OsString::from_vec(bytes(&Value::from(name.as_str())));
    let listed = listed.as_object().unwrap().iter();
    listed.map(|(path, content)| (name(path), bytes(content))).collect()
}

fn files_below(folder: &Path, prefix: &Path, found: &mut Files) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let path = prefix.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => files_below(&entry.path(), &path, found),
            false => {
                found.insert(path.into_os_string(), std::fs::read(entry.path()).unwrap());
            }
        }
    }
}

/// Recorded by `e2e/edit_tool/record.py`.
#[test]
fn every_recorded_answer_is_given_byte_by_byte() {
    let mut answers = 0;
    for line in include_str!("answers.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let before = files(&case["files"]);
        for (path, content) in &before {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let arguments = case["arguments"].as_array().unwrap().iter();
        let arguments: Vec<OsString> = arguments.map(|it| OsString::from_vec(bytes(it))).collect();
        let done = run(folder.path(), &arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(text(&done.stdout), text(&bytes(&case["stdout"])), "{arguments:?}");
        assert_eq!(text(&done.stderr), text(&bytes(&case["stderr"])), "{arguments:?}");
        assert!(done.stdout == bytes(&case["stdout"]) && done.stderr == bytes(&case["stderr"]));
        assert_eq!(done.status.code().unwrap(), case["status"], "{arguments:?}");
        let mut after = Files::new();
        files_below(folder.path(), Path::new(""), &mut after);
        let wanted = case.get("after").map_or(before, files);
        assert_eq!(after, wanted, "{arguments:?}");
        answers += 1;
    }
    assert!(answers >= 500, "{answers}");
}

#[test]
fn a_file_keeps_its_mode_and_a_link_is_replaced_by_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("run.sh"), folder.path().join("link"));
    std::fs::write(&file, "echo 1\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("run.sh", &link).unwrap();
    assert!(run(folder.path(), &["run.sh", "--", "1", "2"]).status.success());
    let mode = |path: &Path| std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(
        (std::fs::read_to_string(&file).unwrap().as_str(), mode(&file)),
        ("echo 2\n", 0o755)
    );
    // As the script's `os.replace` does.
    assert!(run(folder.path(), &["link", "--", "2", "3"]).status.success());
    assert!(std::fs::symlink_metadata(&link).unwrap().is_file());
    assert_eq!(std::fs::read_to_string(&link).unwrap(), "echo 3\n");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "echo 2\n");
}

#[test]
fn a_file_without_an_end_is_refused_and_not_read_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let done = run(folder.path(), &["/dev/zero", "--", "a", "b"]);
    assert_eq!(done.status.code(), Some(1));
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(said.contains("the file has more than 67108864 bytes"), "{said}");
}

#[test]
fn tabs_that_would_not_fit_into_memory_are_refused_and_the_file_stays() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a"), "\tx").unwrap();
    let done = run(
        folder.path(),
        &["a", "--expand-tabs", "--tabsize", "2000000000", "--", "x", "y"],
    );
    assert_eq!(done.status.code(), Some(1), "{}", done.stderr.as_slice().escape_ascii());
    assert_eq!(std::fs::read(folder.path().join("a")).unwrap(), b"\tx");
}

#[test]
fn a_folder_that_cannot_be_written_is_named_and_nothing_is_left_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let done = run(folder.path(), &["/proc/self/comm", "--", "edit", "b"]);
    assert_eq!(done.status.code(), Some(1));
    let said = OsString::from_vec(done.stderr);
    assert!(said.as_bytes().starts_with(b"OS error: [Errno "), "{said:?}");
}
