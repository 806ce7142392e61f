//! Small Python projects with a bug: a number selects its place, its kind and the style of the tests.

use super::sandbox::Files;

/// A function: its signature, its body, its body with the bug, and calls with their expected results.
type Bug = (
    &'static str,
    &'static str,
    &'static str,
    [(&'static str, &'static str); 2],
);

const BUGS: [Bug; 5] = [
    (
        "items",
        "sum(items)",
        "sum(items[1:])",
        [("[1, 2, 3]", "6"), ("[4]", "4")],
    ),
    ("a, b", "(a + b) // 2", "(a - b) // 2", [("2, 4", "3"), ("6, 2", "4")]),
    (
        "table, key",
        "table.get(key, 0)",
        "table[key]",
        [("{}, 'a'", "0"), ("{'b': 1}, 'a'", "0")],
    ),
    (
        "text",
        "text.strip().title()",
        "text.strip().lower()",
        [("' a b '", "'A B'"), ("'x'", "'X'")],
    ),
    ("x", "max(0, min(9, x))", "min(0, max(9, x))", [("12", "9"), ("5", "5")]),
];

/// The style of the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Functions,
    Class,
    Parametrized,
    UnitTest,
}

#[derive(Clone, Debug)]
pub struct Project {
    pub number: usize,
    pub style: Style,
    bug: Bug,
}

impl Project {
    pub fn new(number: usize) -> Self {
        let styles = [Style::Functions, Style::Class, Style::Parametrized, Style::UnitTest];
        Self {
            number,
            style: styles[number % styles.len()],
            bug: BUGS[number % BUGS.len()],
        }
    }

    pub fn with_style(self, style: Style) -> Self {
        Self { style, ..self }
    }

    /// The module's file and name.
    fn module(&self) -> (String, String) {
        let n = self.number;
        match n % 3 {
            0 => (format!("core{n}.py"), format!("core{n}")),
            1 => (format!("pkg{n}/core.py"), format!("pkg{n}.core")),
            _ => (format!("pkg{n}/deep/core.py"), format!("pkg{n}.deep.core")),
        }
    }

    fn source(&self, body: &str) -> Files {
        let (path, _) = self.module();
        let (signature, ..) = self.bug;
        let text = format!(
            "\"\"\"Project {}.\"\"\"\n\n\ndef kept():\n    return {0}\n\n\ndef broken({signature}):\n    return {body}\n",
            self.number
        );
        let folders: Vec<&str> = path.split('/').collect();
        let mut files = Files::new();
        for depth in 1..folders.len() {
            files.insert(format!("{}/__init__.py", folders[..depth].join("/")), String::new());
        }
        files.insert(path, text);
        files
    }

    pub fn good(&self) -> Files {
        self.source(self.bug.1)
    }

    pub fn bad(&self) -> Files {
        self.source(self.bug.2)
    }

    /// Tests: one that always passes, and two that find the bug unless `kept_alone`.
    pub fn tests(&self, kept_alone: bool) -> String {
        let (_, module) = self.module();
        let calls = self.bug.3;
        let check = |(call, wanted): (&str, &str)| format!("assert broken({call}) == {wanted}");
        let method = |name: &str, body: &str| format!("    def {name}(self):\n        {body}\n\n");
        let function = |name: &str, body: &str| format!("def {name}():\n    {body}\n\n\n");
        let all = [
            ("test_kept", "assert kept() is not None".to_owned()),
            ("test_first", check(calls[0])),
            ("test_second", check(calls[1])),
        ];
        let shown = &all[..if kept_alone { 1 } else { all.len() }];
        let written: String = match self.style {
            Style::Functions => shown.iter().map(|(name, body)| function(name, body)).collect(),
            Style::Class | Style::UnitTest => {
                let base = if self.style == Style::Class {
                    "TestBug"
                } else {
                    "BugTest(unittest.TestCase)"
                };
                let methods: String = shown.iter().map(|(name, body)| method(name, body)).collect();
                format!("class {base}:\n{methods}")
            }
            Style::Parametrized => {
                let kept = function("test_kept", &all[0].1);
                let [(a, b), (c, d)] = calls;
                let cases = format!(
                    "CASES = [(lambda: broken({a}), {b}), (lambda: broken({c}), {d})]\n\n\n@pytest.mark.parametrize('at', [0, 1])\ndef \
                     test_case(at):\n    assert CASES[at][0]() == CASES[at][1]\n"
                );
                if kept_alone { kept } else { kept + &cases }
            }
        };
        let import = match self.style {
            Style::UnitTest => "import unittest\n\n",
            Style::Parametrized => "import pytest\n\n",
            _ => "",
        };
        format!(
            "{import}from {module} import broken, kept\n\n\n{}\n",
            written.trim_end()
        )
    }

    /// The names of `tests` after the file's name: those that find the bug, and the one that always passes.
    pub fn names(&self) -> (Vec<String>, String) {
        let inside = match self.style {
            Style::Functions | Style::Parametrized => "",
            Style::Class => "TestBug::",
            Style::UnitTest => "BugTest::",
        };
        let finding = match self.style {
            Style::Parametrized => ["test_case[0]", "test_case[1]"],
            _ => ["test_first", "test_second"],
        };
        (
            finding.iter().map(|name| format!("{inside}{name}")).collect(),
            format!("{inside}test_kept"),
        )
    }
}
