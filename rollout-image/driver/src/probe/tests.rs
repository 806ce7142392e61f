use super::*;
use std::path::Path;
use std::process::Command;

fn result(exit_code: i32, output: &str) -> ExecResult {
    ExecResult {
        id: "modules".into(),
        exit_code: Some(exit_code),
        signal: None,
        timed_out: false,
        output: output.into(),
        omitted_bytes: 0,
        duration_millis: 1,
        killed: None,
    }
}

fn asked(path: &Path) -> ExecResult {
    let argv = request().argv;
    let out = Command::new(&argv[0])
        .args(&argv[1..])
        .env("PATH", path)
        .output()
        .unwrap();
    let code = out.status.code().unwrap();
    result(code, &String::from_utf8([out.stderr, out.stdout].concat()).unwrap())
}

#[test]
fn a_python_says_which_modules_it_has() {
    let Some(ImageContents::Modules(modules)) = read(&asked(Path::new(&std::env::var_os("PATH").unwrap()))) else {
        panic!("no modules");
    };
    assert!(
        ["json", "sys", "unittest", "posix"]
            .iter()
            .all(|name| modules.contains(*name))
    );
    assert!(!modules.contains("no_such_module"));
}

#[test]
fn an_image_without_the_programs_of_grading_says_which() {
    let empty = tempfile::tempdir().unwrap();
    let Some(ImageContents::Without(programs)) = read(&asked(empty.path())) else {
        panic!("all programs");
    };
    assert_eq!(programs, ["bash", "python3", "git", "base64", "gzip", "mktemp", "find"]);
}

#[test]
fn a_command_that_failed_says_nothing_about_the_image() {
    assert_eq!(read(&result(137, "grpo-modules: json")), None);
    assert_eq!(read(&result(0, "killed")), None);
    assert_eq!(ending(&"ä".repeat(1000)).chars().count(), 401);
}
