//! Twenty tasks: twenty modules of one repository, each with its own bug.

use serde_json::{Value, json};

/// A module with one function and its bug.
pub struct Bug {
    pub module: &'static str,
    /// The function, with `{}` for the wrong or right part.
    body: &'static str,
    pub wrong: &'static str,
    pub right: &'static str,
    /// An expression and its expected value.
    call: &'static str,
    value: &'static str,
    /// An expression that is right with the bug too.
    other: &'static str,
}

const fn bug(
    module: &'static str,
    body: &'static str,
    [wrong, right]: [&'static str; 2],
    [call, value, other]: [&'static str; 3],
) -> Bug {
    Bug {
        module,
        body,
        wrong,
        right,
        call,
        value,
        other,
    }
}

pub const BUGS: [Bug; 20] = [
    bug(
        "total",
        "def total(a, b):\n    return a {} b\n",
        ["-", "+"],
        ["total(2, 3)", "5", "total(2, 0) == 2"],
    ),
    bug(
        "area",
        "def area(w, h):\n    return w {} h\n",
        ["+", "*"],
        ["area(3, 4)", "12", "area(2, 2) == 4"],
    ),
    bug(
        "larger",
        "def larger(a, b):\n    return a if a {} b else b\n",
        ["<", ">"],
        ["larger(1, 9)", "9", "larger(4, 4) == 4"],
    ),
    bug(
        "is_even",
        "def is_even(n):\n    return n % 2 == {}\n",
        ["1", "0"],
        ["is_even(8)", "True", "is_even(8) in (True, False)"],
    ),
    bug(
        "clamp",
        "def clamp(x, low, high):\n    return max(low, {}(x, high))\n",
        ["max", "min"],
        ["clamp(9, 0, 5)", "5", "clamp(5, 0, 5) == 5"],
    ),
    bug(
        "mean",
        "def mean(xs):\n    return sum(xs) / {}(xs)\n",
        ["max", "len"],
        ["mean([2, 4])", "3", "mean([2, 2]) == 2"],
    ),
    bug(
        "initials",
        "def initials(name):\n    return ''.join(w[{}] for w in name.split())\n",
        ["-1", "0"],
        ["initials('Ada Lovelace')", "'AL'", "initials('') == ''"],
    ),
    bug(
        "head",
        "def head(xs, n):\n    return xs[{}]\n",
        ["n:", ":n"],
        ["head('abcd', 1)", "'a'", "head('', 3) == ''"],
    ),
    bug(
        "both",
        "def both(a, b):\n    return a {} b\n",
        ["or", "and"],
        ["both(True, False)", "False", "both(True, True) is True"],
    ),
    bug(
        "any_of",
        "def any_of(xs):\n    return {}(xs)\n",
        ["all", "any"],
        ["any_of([0, 1])", "True", "any_of([0]) is False"],
    ),
    bug(
        "inclusive",
        "def inclusive(n):\n    return list(range(1, n{}))\n",
        ["", " + 1"],
        ["inclusive(2)", "[1, 2]", "inclusive(-1) == []"],
    ),
    bug(
        "percent",
        "def percent(part, whole):\n    return {} * part / whole\n",
        ["10", "100"],
        ["percent(1, 4)", "25", "percent(0, 4) == 0"],
    ),
    bug(
        "descending",
        "def descending(xs):\n    return sorted(xs, reverse={})\n",
        ["False", "True"],
        ["descending([1, 3, 2])", "[3, 2, 1]", "descending([]) == []"],
    ),
    bug(
        "slug",
        "def slug(text):\n    return text.{}().replace(' ', '-')\n",
        ["upper", "lower"],
        ["slug('Hello World')", "'hello-world'", "slug('1 2') == '1-2'"],
    ),
    bug(
        "distance",
        "def distance(a, b):\n    return {}(a - b)\n",
        ["int", "abs"],
        ["distance(1, 4)", "3", "distance(4, 1) == 3"],
    ),
    bug(
        "power",
        "def power(a, n):\n    return a {} n\n",
        ["*", "**"],
        ["power(2, 5)", "32", "power(2, 2) == 4"],
    ),
    bug(
        "quotient",
        "def quotient(a, b):\n    return a {} b\n",
        ["%", "//"],
        ["quotient(9, 2)", "4", "quotient(3, 2) == 1"],
    ),
    bug(
        "ends",
        "def ends(xs):\n    return xs[0], xs[{}]\n",
        ["1", "-1"],
        ["ends([1, 2, 3])", "(1, 3)", "ends([1, 2]) == (1, 2)"],
    ),
    bug(
        "joined",
        "def joined(words):\n    return '{}'.join(words)\n",
        [",", ", "],
        ["joined(['a', 'b'])", "'a, b'", "joined(['a']) == 'a'"],
    ),
    bug(
        "missing",
        "def missing(have, want):\n    return sorted(set(want) {} set(have))\n",
        ["&", "-"],
        ["missing([1], [1, 2])", "[2]", "missing([], []) == []"],
    ),
];

impl Bug {
    pub fn file(&self) -> String {
        format!("{}.py", self.module)
    }

    fn with(&self, part: &str) -> String {
        self.body.replace("{}", part)
    }

    /// The line of the bug, with the wrong or the right part.
    pub fn line(&self, part: &str) -> String {
        let line = self.body.lines().nth(1).unwrap();
        line.replace("{}", part)
    }

    /// A mark that only this task's text has.
    pub fn ticket(&self) -> String {
        let number = BUGS.iter().position(|bug| bug.module == self.module).unwrap();
        format!("Ticket {:02}", number + 1)
    }

    fn row(&self, base: &str) -> Value {
        let Bug {
            module,
            call,
            value,
            other,
            ..
        } = self;
        let tried = |name: &str, holds: &str| {
            format!(
                "if python3 -B -c 'from {module} import {module}; assert {holds}' 2> /dev/null; then echo PASSED t.py::{name}; \
                 else echo FAILED t.py::{name}; fi\n"
            )
        };
        let quoted = |text: &str| text.replace('\'', "\"");
        let script = [
            "#!/bin/bash\nset -uxo pipefail\ncd /testbed\necho '>>>>> Start Test Output'\n".to_owned(),
            tried("mended", &quoted(&format!("{call} == {value}"))),
            tried("other", &quoted(other)),
            "echo '>>>>> End Test Output'\n".to_owned(),
        ];
        let ticket = self.ticket();
        json!({
            "instance_id": module, "repo": "r/r", "version": "1", "base_commit": base, "image": format!("img/{module}:1"),
            "problem_statement": format!(
                "{ticket}. The function `{module}` is wrong: `{call}` → `{value}` is what it has to be. Correct its line, \
                 and nothing else."
            ),
            "log_parser": "parse_log_pytest", "eval_type": "pass_and_fail", "eval_script": script.concat(),
            "FAIL_TO_PASS": ["t.py::mended"], "PASS_TO_PASS": ["t.py::other"],
        })
    }
}

/// A script that writes the repository's files.
pub fn files() -> String {
    let file = |bug: &Bug| format!("cat > {} << 'END'\n{}END\n", bug.file(), bug.with(bug.wrong));
    BUGS.iter().map(file).collect()
}

pub fn rows(base: &str) -> Vec<Value> {
    BUGS.iter().map(|bug| bug.row(base)).collect()
}

#[test]
fn each_bug_fails_its_test_and_only_that() {
    let folder = tempfile::tempdir().unwrap();
    let holds = |bug: &Bug, part: &str, text: &str| {
        std::fs::write(folder.path().join(bug.file()), bug.with(part)).unwrap();
        let tried = std::process::Command::new("python3")
            .args(["-B", "-c", &format!("from {0} import {0}; assert {text}", bug.module)])
            .current_dir(folder.path())
            .stderr(std::process::Stdio::null())
            .status();
        tried.unwrap().success()
    };
    for bug in &BUGS {
        let test = format!("{} == {}", bug.call, bug.value);
        assert!(
            !holds(bug, bug.wrong, &test) && holds(bug, bug.right, &test),
            "{}",
            bug.module
        );
        assert!(
            holds(bug, bug.wrong, bug.other) && holds(bug, bug.right, bug.other),
            "{}",
            bug.module
        );
    }
}
