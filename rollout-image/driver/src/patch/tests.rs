use super::*;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Output};

struct Repo {
    dir: tempfile::TempDir,
    base: String,
    /// Whether the policy began after [`start`].
    has_start: bool,
}

fn run(argv: &[String]) -> Output {
    Command::new(&argv[0]).args(&argv[1..]).output().unwrap()
}

fn sh(dir: &Path, script: &str) -> String {
    let out = Command::new("sh")
        .arg("-euc")
        .arg(script)
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{script}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

const GIT: &str = "export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a;";

impl Repo {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        sh(
            dir.path(),
            &format!(
                "{GIT} git init -q repo; cd repo; printf 'one\\ntwo\\n' > a.py; printf 'gone\\n' > gone.py; printf 'same\\ntext\\n' > old.py
                     printf '\\000\\001bin' > blob; printf 'x\\r\\ny\\r\\n' > crlf.txt; printf '/t\\n' > .git/info/exclude
                     git add -A; git commit -qm base; echo private > t"
            ),
        );
        sh(dir.path(), "cp -a repo fresh");
        let base = sh(&dir.path().join("repo"), "git rev-parse HEAD");
        Self {
            dir,
            base,
            has_start: false,
        }
    }

    /// A repository that the image changed after its commit, before the episode.
    fn with_image_changes() -> Self {
        let repo = Self::new();
        sh(
            repo.dir.path(),
            "for d in repo fresh; do (
                cd $d; echo baked >> a.py; rm gone.py; chmod +x old.py; printf '\\000\\377' > blob; rm crlf.txt; ln -s a.py crlf.txt
                echo extra > 'éxtra.txt'; ln -s a.py link; : > empty
            ); done",
        );
        repo.begun()
    }

    fn start(&self) -> Output {
        run(&start(&self.tree(), &self.base))
    }

    /// The episode begins.
    fn begun(self) -> Self {
        let out = self.start();
        assert!(out.status.success(), "{out:?}");
        assert!(out.stdout.is_ascii(), "{out:?}");
        std::fs::write(self.dir.path().join("start.diff"), out.stdout).unwrap();
        Self {
            has_start: true,
            ..self
        }
    }

    fn tree(&self) -> String {
        self.dir.path().join("repo").to_str().unwrap().to_owned()
    }

    fn policy(&self, script: &str) {
        sh(&self.dir.path().join("repo"), &format!("{GIT} {script}"));
    }

    fn take(&self) -> Output {
        let out = self.dir.path().join("out/patch.diff");
        let since = match self.has_start {
            true => Since::Start,
            false => Since::Base,
        };
        let argv = take_to(&self.tree(), &self.base, since, out.to_str().unwrap(), MAX_PATCH);
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]);
        if self.has_start {
            command.stdin(File::open(self.dir.path().join("start.diff")).unwrap());
        }
        command.output().unwrap()
    }

    fn patch(&self) -> Vec<u8> {
        let out = self.take();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        std::fs::read(self.dir.path().join("out/patch.diff")).unwrap()
    }

    /// Takes the patch, applies it to a fresh copy, and compares the two trees.
    fn survives(&self) -> bool {
        let patch = self.patch();
        assert!(!patch.is_empty());
        let fresh = self.dir.path().join("fresh");
        let file = self.dir.path().join("out/patch.diff");
        let out = run(&apply_from(fresh.to_str().unwrap(), &self.base, file.to_str().unwrap()));
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let diff = Command::new("diff")
            .args(["-r", "--no-dereference", "-x", ".git", "repo", "fresh"])
            .current_dir(self.dir.path())
            .output()
            .unwrap();
        print!("{}", String::from_utf8_lossy(&diff.stdout));
        diff.status.success()
    }
}

#[test]
fn nothing_changed_is_an_empty_patch() {
    assert!(Repo::new().patch().is_empty());
}

/// Defect 12.
#[test]
fn new_deleted_renamed_and_binary_files_reach_the_grader() {
    let repo = Repo::new();
    repo.policy(
        "echo new > 'new file.py'; mkdir d; echo deep > d/deep.py; rm gone.py; mv old.py renamed.py
             printf '\\000\\377changed' > blob; chmod +x a.py; ln -s a.py link; echo three >> a.py",
    );
    assert!(repo.survives());
}

/// Defect 12: a helper that the image keeps in the tree is not part of the patch.
#[test]
fn what_the_image_excludes_stays_out_of_the_patch() {
    let repo = Repo::new();
    repo.policy("echo tampered > t; echo x >> a.py");
    assert!(!String::from_utf8(repo.patch()).unwrap().contains("tampered"));
}

#[test]
fn what_the_policy_commits_stages_or_hides_in_its_index_is_in_the_patch_all_the_same() {
    let repo = Repo::new();
    repo.policy(
        "echo committed > c.py; git add c.py; git commit -qm mine; echo staged > s.py; git add s.py
             git update-index --assume-unchanged a.py; echo hidden >> a.py; git update-index --skip-worktree old.py; echo also >> old.py",
    );
    assert!(repo.survives());
}

#[test]
fn hostile_configuration_attributes_and_hooks_have_no_say() {
    let repo = Repo::new();
    repo.policy(
        "git config diff.external 'sh -c \"echo forged\"'; git config diff.noprefix true; git config core.autocrlf true
             git config filter.evil.clean 'echo cleaned'; git config core.fsmonitor 'touch fsmonitor-ran'; git config diff.forge.textconv 'echo conv'
             git config core.excludesFile /tmp/nothing; git config core.hooksPath hooks; git config core.quotePath false
             printf '*.py filter=evil diff=forge -diff\\n*.txt text eol=crlf\\n' > .gitattributes
             echo four >> a.py; printf 'x\\r\\nz\\r\\n' > crlf.txt",
    );
    assert!(repo.survives());
    assert!(!repo.dir.path().join("repo/fsmonitor-ran").exists());
}

#[test]
fn a_repository_made_inside_the_tree_is_so_many_files() {
    let repo = Repo::new();
    repo.policy("mkdir inner; cd inner; git init -q; echo x > x.py");
    repo.patch();
    assert!(String::from_utf8(repo.patch()).unwrap().contains("inner/x.py"));
}

#[test]
fn a_broken_checkout_is_told_from_everything_else() {
    let repo = Repo::new();
    repo.policy("rm -rf .git/objects");
    assert_eq!(repo.take().status.code(), Some(BROKEN_CHECKOUT));
    let gone = Repo::new();
    gone.policy("rm -rf .git");
    assert_eq!(gone.take().status.code(), Some(BROKEN_CHECKOUT));
}

#[test]
fn a_patch_beyond_the_limit_is_refused_where_it_is_made() {
    let repo = Repo::new();
    repo.policy("seq 1 2000 > big.txt");
    let out = repo.dir.path().join("out/patch.diff");
    let argv = take_to(&repo.tree(), &repo.base, Since::Base, out.to_str().unwrap(), 1000);
    assert_eq!(run(&argv).status.code(), Some(PATCH_TOO_LARGE));
}

#[test]
fn a_patch_applies_to_an_image_whose_tree_is_not_its_commit() {
    let repo = Repo::new();
    sh(
        repo.dir.path(),
        "for d in repo fresh; do echo baked >> $d/a.py; echo extra > $d/extra.txt; done",
    );
    repo.policy("echo five >> old.py");
    assert!(repo.survives());
}

/// A patch against the base commit has the image's own changes too. Those to the configuration of tests are left out.
#[test]
fn files_outside_the_patch_stay_as_the_image_has_them() {
    let repo = Repo::new();
    sh(
        repo.dir.path(),
        "for d in repo fresh; do echo baked >> $d/a.py; echo -rA >> $d/old.py; echo extra > $d/extra.txt; done",
    );
    repo.policy("echo five >> a.py; rm gone.py; mkdir d; echo deep > 'd/new file.py'");
    let patch = String::from_utf8(repo.patch()).unwrap();
    let is_applied = |section: &&str| !section.starts_with("a/old.py") && !section.starts_with("a/extra.txt");
    let sections = patch.split("diff --git ").skip(1).filter(is_applied);
    let applied: String = sections.map(|section| format!("diff --git {section}")).collect();
    assert_eq!(applied.matches("diff --git ").count(), 3, "{applied}");
    let file = repo.dir.path().join("applied.diff");
    std::fs::write(&file, applied).unwrap();
    let fresh = repo.dir.path().join("fresh");
    let out = run(&apply_from(fresh.to_str().unwrap(), &repo.base, file.to_str().unwrap()));
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    sh(repo.dir.path(), "diff -r --no-dereference -x .git repo fresh");
}

/// In such an image the policy's patch deletes the folder's files and adds the link.
#[test]
fn a_folder_that_the_image_replaced_by_a_link_keeps_the_files_that_the_link_leads_to() {
    let repo = Repo::new();
    sh(
        repo.dir.path(),
        &format!(
            "{GIT} mkdir outside repo/d; echo x > outside/x; echo x > repo/d/x; cd repo; git add d; git commit -qm d"
        ),
    );
    let base = sh(&repo.dir.path().join("repo"), "git rev-parse HEAD");
    let changes = "rm -r repo/d; ln -s ../outside repo/d; echo baked >> repo/a.py; rm -rf fresh; cp -a repo fresh";
    sh(repo.dir.path(), changes);
    let repo = Repo { base, ..repo };
    repo.policy("echo five >> a.py");
    assert!(repo.survives());
    assert!(repo.dir.path().join("outside/x").exists());
}

/// Paths of a patch.
fn paths(patch: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(patch);
    let sections = text.lines().filter_map(|line| line.strip_prefix("diff --git a/"));
    sections
        .map(|names| names.split_once(" b/").unwrap().0.to_owned())
        .collect()
}

#[test]
fn an_image_without_changes_has_an_empty_start() {
    let out = Repo::new().start();
    assert!(out.status.success() && out.stdout.is_empty(), "{out:?}");
}

#[test]
fn what_the_image_changed_is_no_part_of_the_patch() {
    let repo = Repo::with_image_changes();
    assert!(!repo.start().stdout.is_empty());
    assert_eq!(repo.patch(), b"");
    repo.policy("echo five >> a.py; echo more >> éxtra.txt; rm link; echo mine > mine.py");
    assert!(repo.survives());
    let patch = String::from_utf8(repo.patch()).unwrap();
    assert!(!patch.contains("+baked") && patch.contains("\n+five\n"), "{patch}");
    assert_eq!(patch.matches("diff --git ").count(), 4, "{patch}");
}

#[test]
fn a_policy_that_removes_what_the_image_changed_has_that_in_its_patch() {
    let repo = Repo::with_image_changes();
    repo.policy("git reset -q --hard; git clean -fdq");
    // Two changes of crlf.txt: a deleted link, and a new file. The name of éxtra.txt is in quotes.
    let wanted = [
        "a.py", "blob", "crlf.txt", "crlf.txt", "empty", "gone.py", "link", "old.py",
    ];
    assert_eq!(paths(&repo.patch()), wanted);
    assert!(repo.survives());
}

#[test]
fn commits_and_lost_objects_of_the_policy_do_not_bring_the_images_changes_into_its_patch() {
    let repo = Repo::with_image_changes();
    repo.policy(
        "echo five >> a.py; git add -A; git commit -qm mine; git reset -q --soft HEAD~; git reset -q
             git reflog expire --expire=now --all; git gc -q --prune=now",
    );
    assert_eq!(paths(&repo.patch()), ["a.py"]);
    assert!(repo.survives());
}

#[test]
fn the_policy_finds_the_repository_as_the_image_has_it() {
    let repo = Repo::new();
    let dir = repo.dir.path().join("repo");
    let look = || {
        sh(
            &dir,
            "find . | sort; git count-objects -v; git status --porcelain; ls in/.git",
        )
    };
    repo.policy("echo baked >> a.py; mkdir in; cd in; git init -q; echo x > x; git add x; git commit -qm x");
    let before = look();
    repo.start();
    assert_eq!(look(), before);
}

/// Its files cannot be told from files of the policy: the patch is then against the base commit.
#[test]
fn a_repository_of_the_image_inside_the_repository_is_refused_as_a_start() {
    let repo = Repo::new();
    repo.policy("mkdir in; cd in; git init -q; echo x > x; git add x; git commit -qm x");
    let out = repo.start();
    assert_eq!((out.status.code(), out.stdout), (Some(OTHER_REPOSITORIES), Vec::new()));
    // One that git ignores is no part of any patch.
    let ignored = Repo::new();
    ignored.policy("echo /in >> .git/info/exclude; git clone -q . in");
    assert_eq!(ignored.start().status.code(), Some(0));
}

#[test]
fn a_start_that_the_tree_of_the_base_commit_does_not_take_gives_the_patch_against_the_base_commit() {
    let repo = Repo::with_image_changes();
    repo.policy("echo five >> a.py");
    std::fs::write(repo.dir.path().join("start.diff"), "something else\n").unwrap();
    let patch = String::from_utf8(repo.patch()).unwrap();
    assert!(patch.contains("\n+baked\n+five\n"), "{patch}");
    assert!(repo.survives());
}

#[test]
fn a_file_that_the_image_ignores_and_the_policy_does_not_is_written_beside_changes_of_changed_files() {
    let repo = Repo::with_image_changes();
    repo.policy(
        ": > .git/info/exclude; sed -i '1s/^/zero\\n/' a.py; echo more >> éxtra.txt; rm crlf.txt; echo z > crlf.txt",
    );
    let patch = repo.patch();
    assert!(paths(&patch).contains(&"t".to_owned()));
    assert!(repo.survives());
}

/// The ignored file keeps the patch from the image's tree; the index then has the base commit's gone.py and old.py.
#[test]
fn a_new_file_of_the_patch_replaces_one_of_the_base_commit_that_the_image_removed_or_hid() {
    let repo = Repo::new();
    sh(
        repo.dir.path(),
        "for d in repo fresh; do echo baked >> $d/a.py; rm $d/gone.py; done; rm repo/old.py",
    );
    let repo = repo.begun();
    repo.policy(": > .git/info/exclude; sed -i '1s/^/zero\\n/' a.py; echo back > gone.py; echo mine > old.py");
    assert_eq!(paths(&repo.patch()), ["a.py", "gone.py", "old.py", "t"]);
    assert!(repo.survives());
}

#[test]
fn git_takes_a_published_patch_that_lost_its_last_newline() {
    let repo = Repo::new();
    let lost = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,3 @@\n one\n two\n+three";
    std::fs::write(repo.dir.path().join("gold.diff"), published(lost)).unwrap();
    let text = sh(&repo.dir.path().join("fresh"), "git apply ../gold.diff; cat a.py");
    assert_eq!(text, "one\ntwo\nthree");
    assert_eq!(published("whole\n"), "whole\n");
}

#[test]
fn a_patch_of_another_tree_does_not_apply_and_says_so() {
    let repo = Repo::new();
    let patch = repo.dir.path().join("other.diff");
    std::fs::write(
        &patch,
        "diff --git a/none.py b/none.py\n--- a/none.py\n+++ b/none.py\n@@ -1,2 +1,2 @@\n-was\n+is\n context\n",
    )
    .unwrap();
    let fresh = repo.dir.path().join("fresh");
    let argv = apply_from(fresh.to_str().unwrap(), &repo.base, patch.to_str().unwrap());
    assert_eq!(run(&argv).status.code(), Some(DOES_NOT_APPLY));
}

/// Applies this text; returns the exit status and the content of its file.
fn applied(text: &str) -> (Option<i32>, String) {
    let repo = Repo::new();
    let patch = repo.dir.path().join("some.diff");
    std::fs::write(&patch, text).unwrap();
    let fresh = repo.dir.path().join("fresh");
    let argv = apply_from(fresh.to_str().unwrap(), &repo.base, patch.to_str().unwrap());
    let code = run(&argv).status.code();
    (code, std::fs::read_to_string(fresh.join("a.py")).unwrap())
}

#[test]
fn a_diff_of_git_whose_context_differs_is_applied_with_fuzz_and_nothing_else_is() {
    let files = "--- a/a.py\n+++ b/a.py\n";
    let hunk = "@@ -1,3 +1,4 @@\n zero\n one\n+between\n two\n";
    let git = format!("diff --git a/a.py b/a.py\nindex 1111111..2222222 100644\n{files}{hunk}");
    let (code, text) = applied(&git);
    assert!(code == Some(0) && text.contains("between\n"), "{code:?} {text}");
    let refused = (Some(DOES_NOT_APPLY), "one\ntwo\n".to_owned());
    for other in [
        format!("{files}{hunk}"),
        format!("Index: a.py\n{git}"),
        format!("{git}1d\n"),
        format!("{git}diff --git a/../x b/../x\n--- a/../x\n+++ b/../x\n@@ -0,0 +1 @@\n+x\n"),
        format!("{git}diff --git a/.git/x b/.git/x\n--- a/.git/x\n+++ b/.git/x\n@@ -0,0 +1 @@\n+x\n"),
        format!("{git}diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n"),
        git.replace("100644", "120000"),
        git.replace("+1,4", "+1,5"),
        git.replace("+between", "!between"),
    ] {
        assert_eq!(applied(&other), refused, "{other}");
    }
}

/// Defect 16: no delimiter in the patch can end it early, because it is not sent in a heredoc.
#[test]
fn a_patch_that_spells_a_heredoc_delimiter_arrives_whole() {
    let repo = Repo::new();
    repo.policy("printf 'EOF\\nEOF_114329324912\\nrm -rf /\\n' > a.py");
    assert!(repo.survives());
}
