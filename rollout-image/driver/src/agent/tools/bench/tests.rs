use super::*;

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
