//! A sandbox as a folder: the files of an image, then setup, patch and evaluation script, which really run.
//!
//! Paths of the folder replace the paths of sandboxes. `conda activate`, `pip install` and the like do nothing: the
//! tests need only this machine's pytest.

use crate::world;
use grpo_driver::patch;
use grpo_driver::tasks::Task;
use regex_lite::Regex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Contents by path.
pub type Files = BTreeMap<String, String>;

/// The files of an image.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// Committed in /testbed; if empty, there is no /testbed.
    pub repository: Files,
    /// Outside of the repository, and uncommitted files in it.
    pub others: Files,
}

/// Programs of images that do nothing here or call another one.
const PROGRAMS: [(&str, &str); 5] = [
    (
        "python",
        "case \" $* \" in *' -m pip '*|*' setup.py '*) exit 0 ;; esac\nexec python3 \"$@\"",
    ),
    ("pip", "exit 0"),
    ("make", "exit 0"),
    // `tox --current-env -epy39 -v -- tests`, whose configuration calls pytest this way.
    (
        "tox",
        "while [ \"$1\" != -- ]; do shift; done; shift\nexec python3 -m pytest -rA \"$@\"",
    ),
    ("uv", "[ \"$1\" = run ] && shift\nexec \"$@\""),
];
const CONDA: &str = "conda() { :; }\n";

pub struct Folder {
    dir: tempfile::TempDir,
    sandbox_path: Regex,
}

fn git(folder: &Path, arguments: &[&str]) -> String {
    let names = [
        "GIT_AUTHOR_NAME",
        "GIT_AUTHOR_EMAIL",
        "GIT_COMMITTER_NAME",
        "GIT_COMMITTER_EMAIL",
    ];
    let dates = ["GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"];
    let out = Command::new("git")
        .args(arguments)
        .current_dir(folder)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .envs(names.map(|name| (name, "a")))
        .envs(dates.map(|name| (name, "2020-01-01T00:00:00Z")))
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).unwrap()
}

fn write(folder: &Path, files: &Files) {
    use std::os::unix::fs::PermissionsExt as _;
    for (path, text) in files {
        let file = folder.join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
        if text.starts_with("#!") {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
}

fn commit(folder: &Path, files: &Files) {
    std::fs::create_dir_all(folder).unwrap();
    git(folder, &["init", "-q", "--template=", "."]);
    write(folder, files);
    git(folder, &["add", "-A"]);
    git(folder, &["commit", "-qm", "Initial commit"]);
}

/// The patch from `old` to `old` plus these files.
pub fn diff(old: &Files, new: &Files) -> String {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("a"), old);
    write(&dir.path().join("b"), old);
    write(&dir.path().join("b"), new);
    for folder in ["a", "b"] {
        std::fs::create_dir_all(dir.path().join(folder)).unwrap();
    }
    let command = ["diff", "--no-index", "--no-prefix", "a", "b"];
    let out = Command::new("git")
        .args(command)
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(matches!(out.status.code(), Some(0 | 1)), "{out:?}");
    // A new file has the second folder in both names.
    let text = String::from_utf8(out.stdout).unwrap();
    text.replace("diff --git b/", "diff --git a/")
}

/// The folder with these programs, first in `PATH`.
fn programs() -> &'static Path {
    static FOLDER: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap().keep();
        let scripts = PROGRAMS.map(|(name, body)| (name.to_owned(), format!("#!/bin/sh\n{body}\n")));
        write(&folder, &scripts.into());
        folder
    })
}

impl Folder {
    /// A sandbox with this image.
    pub fn new(image: &Image) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let repository = dir.path().join("testbed");
        if !image.repository.is_empty() {
            commit(&repository, &image.repository);
        }
        write(dir.path(), &image.others);
        let activate = ("opt/miniconda3/bin/activate".to_owned(), CONDA.to_owned());
        write(dir.path(), &[activate].into());
        for folder in ["home", "tmp/grpo"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        let sandbox_path = r#"(^|[\s'"=;:(])/(testbed|opt/miniconda3|r2e_tests|r2e|tmp/grpo)\b"#;
        let sandbox_path = Regex::new(sandbox_path).unwrap();
        Self { dir, sandbox_path }
    }

    /// The commit of the repository.
    pub fn head(&self) -> String {
        git(&self.dir.path().join("testbed"), &["rev-parse", "HEAD"])
            .trim()
            .to_owned()
    }

    /// The text with this sandbox's paths.
    fn here(&self, text: &str) -> String {
        let to = format!("${{1}}{}/${{2}}", self.dir.path().display());
        self.sandbox_path.replace_all(text, to.as_str()).into_owned()
    }

    fn place(&self, path: &str) -> PathBuf {
        PathBuf::from(self.here(path))
    }

    /// Exit status and output of a command; both streams are merged, as in sandboxes.
    fn run(&self, argv: &[String], cwd: &str) -> (Option<i32>, String) {
        let path = std::env::var("PATH").unwrap();
        let home = self.dir.path().join("home");
        let out = Command::new("/bin/bash")
            .args(["-c", "exec \"$@\" 2>&1", "command"])
            .args(argv.iter().map(|part| self.here(part)))
            .current_dir(self.place(cwd))
            .env(
                "PATH",
                format!("{}:{}:{path}", programs().display(), world::pytest().display()),
            )
            .env("GIT_CONFIG_GLOBAL", home.join(".gitconfig"))
            .env("HOME", home)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
    }

    /// Evaluates like a grader: setup, the patch if any, the evaluation script. Returns the log.
    pub fn evaluate(&self, task: &Task, patch: &str, script: &str) -> String {
        let succeeds = |what: &str, argv: &[String]| {
            let (code, output) = self.run(argv, "/tmp/grpo");
            assert_eq!(code, Some(0), "{} of {}: {output}", what, task.instance);
        };
        std::fs::write(self.place(patch::SETUP_FILE), self.here(&task.environment.setup)).unwrap();
        succeeds("setup", &patch::set_up(&[]));
        std::fs::write(self.place(patch::EVAL_FILE), self.here(script)).unwrap();
        if !patch.is_empty() {
            std::fs::write(self.place(patch::PATCH_FILE), patch).unwrap();
            let base = task.base_commit.as_deref().unwrap_or("HEAD");
            succeeds("patch", &patch::apply(&task.environment.directory, base));
        }
        let argv = ["/bin/bash", patch::EVAL_FILE].map(str::to_owned);
        self.run(&argv, &task.environment.directory).1
    }
}
