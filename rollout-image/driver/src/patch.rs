//! Takes a patch from the policy's sandbox and applies it in the grader's.
//!
//! The patch is everything between the tree at the episode's start and the working tree: new files, deletions, renames
//! (as a deletion and a new file), modes, links and binaries. It is taken with a separate git directory and index that
//! only borrow the repository's objects, so the policy's changes to index, configuration, attributes, hooks or HEAD
//! have no effect. Files that the image's own exclude file excludes stay out. The bytes travel as files, never through
//! a shell's quoting or a heredoc.
//!
//! Images may change files of the base commit, or add some. Before the policy acts, [`start`] prints these changes as
//! a diff, which the driver keeps. [`take_since`] gets it back and makes the tree of the start from the base commit. So
//! nothing of it lies in the sandbox meanwhile, where a policy could delete or change it.

pub mod hidden;
pub mod test_setup;

use bytes::Bytes;

/// Path of the patch in both sandboxes.
pub const PATCH_FILE: &str = "/tmp/grpo/patch.diff";
/// Path of the task's evaluation script in the grader's sandbox.
pub const EVAL_FILE: &str = "/tmp/grpo/eval.sh";
/// Path of the task's setup in both sandboxes while it runs.
pub const SETUP_FILE: &str = "/tmp/grpo/setup.sh";
/// The driver does not grade a larger patch: no real bug fix has this size.
pub const MAX_PATCH: usize = 8 << 20;
/// The longest output of [`start`] that is kept, in bytes. It travels back as the input of a command.
pub const MAX_START: u64 = 4 << 20;

/// Exit status of [`take`] when the base commit cannot be read.
pub const BROKEN_CHECKOUT: i32 = 3;
/// Exit status of [`take`] when the patch is longer than [`MAX_PATCH`].
pub const PATCH_TOO_LARGE: i32 = 4;
/// Exit status of [`start`] when the image has a repository inside the repository, or another commit in a submodule.
pub const OTHER_REPOSITORIES: i32 = 5;
/// Exit status of [`apply`] when no method applied the patch.
pub const DOES_NOT_APPLY: i32 = 7;

/// Makes a git directory of its own, whose index is the base commit's tree.
const INDEX: &str = r#"set -eu
repo=$1 base=$2 diff=$3
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_EXTERNAL_DIFF GIT_DIFF_OPTS
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_ATTR_NOSYSTEM=1 GIT_CONFIG_COUNT=0
export GIT_TERMINAL_PROMPT=0 GIT_PAGER=cat LC_ALL=C HOME=/nonexistent
cd "$repo" || exit 3
own=$(mktemp -d)
trap 'rm -rf "$own"' EXIT
case ${#base} in 64) format=sha256 ;; *) format=sha1 ;; esac
git init -q --template= --object-format=$format "$own" >&2
source=$repo/.git
[ -d "$source" ] || source=$(sed -n 's/^gitdir: //p' "$source" 2> /dev/null || true)
[ -d "$source/objects" ] || source=$source/../..
[ -d "$source/objects" ] || exit 3
mkdir -p "$own/.git/objects/info" "$own/.git/info"
(cd "$source/objects" && pwd) > "$own/.git/objects/info/alternates"
[ ! -f "$source/info/exclude" ] || cp "$source/info/exclude" "$own/.git/info/exclude"
echo "* -text !eol -filter -ident -working-tree-encoding $diff" > "$own/.git/info/attributes"
export GIT_DIR="$own/.git" GIT_WORK_TREE="$PWD"
git config core.fileMode true
git read-tree "$base^{tree}" 2> /dev/null || exit 3
add() { git -c core.safecrlf=false add -A . >&2; }
changes() {
  git diff --cached --binary --full-index --no-color --no-ext-diff --no-textconv --no-renames \
    --src-prefix=a/ --dst-prefix=b/ "$1"
}
"#;

/// Standard output has the changes and nothing else.
const QUIET: &str = "exec 3>&1 > /dev/null 2>&1\n";

/// Changes nothing in the repository, which the policy gets as the image has it. So repositories inside it keep theirs.
const START: &str = r#"add
if git diff --cached --raw --no-abbrev --no-renames "$base^{tree}" | grep -Eq '^:([0-7]+ )?160000 '; then exit 5; fi
changes "$base^{tree}" >&3
"#;

const TAKE: &str = r#"out=$4 max=$5 since=$6
rm -rf "${out%/*}" && mkdir -p "${out%/*}"
if [ -z "$(git ls-files -s | grep '^160000 ' || true)" ]; then
  # A repository the policy made inside is so many files.
  find . -mindepth 2 -name .git -prune -exec rm -rf {} + >&2
fi
from="$base^{tree}"
if [ "$since" = start ]; then
  # It fails only if the base commit's files are lost. The patch against the base commit then serves as well.
  if git apply --cached --whitespace=nowarn - >&2 && tree=$(git write-tree --missing-ok); then
    from=$tree
  else
    git read-tree "$base^{tree}"
  fi
fi
add
changes "$from" > "$out"
[ "$(wc -c < "$out")" -le "$max" ] || exit 4
"#;

const APPLY: &str = r#"set -u
repo=$1 base=$2 patch=$3
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_TERMINAL_PROMPT=0 LC_ALL=C
cd "$repo" || exit 7
g() { git -c safe.directory='*' -c core.autocrlf=false -c apply.whitespace=nowarn "$@"; }
clean() { g read-tree --reset "$base" && g checkout-index -a -f && g clean -fdq; }
# Paths of the files that the patch makes (new), or changes and deletes (old), as git quotes them.
paths() {
  awk -v wanted="$1" '
    function told() { if (path != "" && kind == wanted) print path; path = "" }
    /^diff --git / {
      told()
      kind = "old"
      names = substr($0, 12)
      path = substr(names, 1, int((length(names) - 1) / 2))
      sub(/^a\//, "", path)
      sub(/^"a\//, "\"", path)
    }
    /^new file mode / { kind = "new" }
    END { told() }
  ' "$patch"
}
# Makes the index of the patch's files as the image has them. A new file of the patch replaces one of the base commit,
# which the image had removed. A changed type is both, a deleted file and a new one: so the old ones come last.
as_image() {
  paths new | g update-index --force-remove --stdin && paths old | g update-index --add --remove --replace --stdin
}
# Writes the patch's files as the image or the base commit, and the patch, make them. All others stay as the image has
# them: its tests may need them, such as a tox.ini that the image changed.
onto() (
  own=$(mktemp -d) || exit 1
  trap 'rm -rf "$own"' EXIT
  export GIT_INDEX_FILE="$own/index"
  g read-tree "$base^{tree}" || exit 1
  [ "$1" = base ] || as_image || exit 1
  from=$(g write-tree) && g apply --cached --whitespace=nowarn "$patch" && made=$(g write-tree) || exit 1
  # Between two trees, git writes only what differs, and follows no link out of the tree.
  g read-tree "$from" && g read-tree --reset -u "$from" "$made"
)
# patch also takes scripts for ed, and follows links and names out of the tree where it is old: it gets plain diffs of git.
plain() {
  awk '
    function bad() { refused = 1; exit 1 }
    old > 0 || new > 0 {
      kind = substr($0, 1, 1)
      if (kind == " " || kind == "") { old--; new-- }
      else if (kind == "-") old--
      else if (kind == "+") new--
      else if (kind != "\\") bad()
      if (old < 0 || new < 0) bad()
      next
    }
    /^diff --git / { began = 1 }
    !began { bad() }
    /^(---|\+\+\+) \/dev\/null$/ { next }
    /^(diff --git|---|\+\+\+) / && (/\/\.(\.|git)\// || / "?\//) { bad() }
    /^(index|old mode|new mode|new file mode|deleted file mode) .*120000$/ { bad() }
    /^@@ -[0-9]+(,[0-9]+)? \+[0-9]+(,[0-9]+)? @@/ {
      old = (split($2, part, ",") > 1) ? part[2] + 0 : 1
      new = (split($3, part, ",") > 1) ? part[2] + 0 : 1
      next
    }
    /^(diff --git|---|\+\+\+|index|old mode|new mode|new file mode|deleted file mode) / || /^\\ / { next }
    { bad() }
    END { exit refused || !began || old > 0 || new > 0 }
  ' "$1"
}
g apply --whitespace=nowarn "$patch" && exit 0
# A new file of the patch may be there already, as one that the image ignores.
onto image && exit 0
# Published patches, and those of earlier versions, are against the base commit, from which the image's tree may differ.
onto base && exit 0
clean && g apply --whitespace=nowarn "$patch" && exit 0
clean && g apply --3way "$patch" && exit 0
clean && plain "$patch" && patch -p1 --batch --forward --fuzz=5 -i "$patch" && exit 0
exit 7
"#;

/// Runs the script, then removes it, because it may hold the answer. Also removes the paths of the other arguments.
const SET_UP: &str = r#"script=$1
shift
[ ! -f "$script" ] || bash "$script" || exit 1
rm -rf -- "$script" "$@"
"#;

const CHECK: &str = r#"cd "$1" && git -c safe.directory='*' cat-file -e "$2^{tree}""#;
const HEAD: &str = r#"cd "$1" && git -c safe.directory='*' rev-parse --verify HEAD"#;

/// Excludes HEAD, which the policy sees anyway: images commit their own setup on top of the base.
const LATER: &str = r#"cd "$1" && git -c safe.directory='*' -c log.showSignature=false log --all --reflog --format='@%h %<(72,trunc)%s' -n 1000 --not "$2" HEAD"#;
/// Prefix of these lines, which tells them from git's warnings.
pub const LATER_MARK: &str = "@";

/// A publisher's patch in the form that git takes: datasets often lack its last newline.
pub fn published(text: &str) -> Bytes {
    let newline = if text.ends_with('\n') { "" } else { "\n" };
    Bytes::from(format!("{text}{newline}"))
}

fn script(text: &str, arguments: &[&str]) -> Vec<String> {
    ["/bin/sh", "-c", text, "grpo"]
        .iter()
        .chain(arguments)
        .map(|part| (*part).to_owned())
        .collect()
}

/// Prints how `repo` differs from `base` before the policy acts, as a diff; nothing if it does not.
pub fn start(repo: &str, base: &str) -> Vec<String> {
    // All files count as binary: their changes are then ASCII, and apply to nothing but the same bytes. Only links'
    // targets are as they are.
    script(&[QUIET, INDEX, START].concat(), &[repo, base, "-diff"])
}

/// Writes the patch of `repo` against `base` to [`PATCH_FILE`].
pub fn take(repo: &str, base: &str) -> Vec<String> {
    take_to(repo, base, Since::Base, PATCH_FILE, MAX_PATCH)
}

/// Writes the patch of `repo` against the tree that it began with to [`PATCH_FILE`]. The command's input is the output
/// of [`start`].
pub fn take_since(repo: &str, base: &str) -> Vec<String> {
    take_to(repo, base, Since::Start, PATCH_FILE, MAX_PATCH)
}

/// The tree that a patch is against.
#[derive(Clone, Copy, Debug)]
enum Since {
    Base,
    Start,
}

fn take_to(repo: &str, base: &str, since: Since, out: &str, max: usize) -> Vec<String> {
    let since = match since {
        Since::Base => "base",
        Since::Start => "start",
    };
    let max = max.to_string();
    script(&[INDEX, TAKE].concat(), &[repo, base, "!diff", out, &max, since])
}

/// Applies [`PATCH_FILE`] to `repo`: as it is; on the image's and on the base commit's versions of its files; and then,
/// as the official harness does, on a tree reset to the base commit, with a three-way merge and with fuzz.
pub fn apply(repo: &str, base: &str) -> Vec<String> {
    apply_from(repo, base, PATCH_FILE)
}

fn apply_from(repo: &str, base: &str, patch: &str) -> Vec<String> {
    script(APPLY, &[repo, base, patch])
}

/// Runs [`SETUP_FILE`] if it exists, then removes it and the `hidden` paths.
pub fn set_up(hidden: &[String]) -> Vec<String> {
    let hidden = hidden.iter().map(String::as_str);
    script(SET_UP, &std::iter::once(SETUP_FILE).chain(hidden).collect::<Vec<_>>())
}

/// Succeeds if the base commit exists.
pub fn check(repo: &str, base: &str) -> Vec<String> {
    script(CHECK, &[repo, base])
}

/// Prints a line for each commit that neither the base commit nor HEAD contains, newest first.
pub fn later(repo: &str, base: &str) -> Vec<String> {
    script(LATER, &[repo, base])
}

/// Prints the checked-out commit.
pub fn head(repo: &str) -> Vec<String> {
    script(HEAD, &[repo])
}

#[cfg(test)]
mod tests;
