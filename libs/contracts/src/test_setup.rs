//! Files by which a patch could decide test results: pytest, Python or another test program loads them automatically,
//! or an evaluation's command starts them. The driver leaves them out of a policy's patch before it is graded, and
//! kubectl grpo marks a patch that changes one.

/// In any folder.
pub const NAMES: [&str; 9] = [
    ".rspec",
    "conftest.py",
    "pytest.ini",
    "pytest.toml",
    ".pytest.toml",
    ".pytest.ini",
    "tox.ini",
    "setup.cfg",
    "pyproject.toml",
];
/// Beginnings of names in any folder: the configuration of test programs for JavaScript and PHP.
const NAMES_BEGIN: [&str; 5] = [
    ".mocharc.",
    "jest.config.",
    "karma.conf.",
    "phpunit.xml",
    "vitest.config.",
];
/// Modules, as a file or a folder, that Python imports when it starts.
const MODULES: [&str; 2] = ["sitecustomize", "usercustomize"];
/// Ends of names of files and folders: compiled modules, which Python runs in the place of a source with the same size
/// and time, and the entry points by which pytest finds plugins.
const PARTS_END: [&str; 4] = [".dist-info", ".egg-info", ".pyc", "__pycache__"];
/// From the root of the tree: programs that the evaluations of SWE-bench, SWE-Gym and SWE-rebench start instead of
/// pytest, of Django and of SymPy, with the modules that SymPy's needs; and what `python -m pytest` imports in the
/// place of the installed pytest.
pub const PATHS: [&str; 9] = [
    "_pytest/__init__.py",
    "bin/test",
    "pluggy.py",
    "pluggy/__init__.py",
    "pytest.py",
    "pytest/__init__.py",
    "sympy/testing/runtests.py",
    "sympy/utilities/runtests.py",
    "tests/runtests.py",
];

/// `path`: from the root of the tree.
pub fn is_test_setup(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let is_loaded = |part: &str| {
        let module = part.split('.').next().unwrap_or(part);
        MODULES.contains(&module) || PARTS_END.iter().any(|end| part.ends_with(end))
    };
    NAMES.contains(&name)
        || NAMES_BEGIN.iter().any(|begin| name.starts_with(begin))
        || PATHS.contains(&path)
        || path.split('/').any(is_loaded)
}
