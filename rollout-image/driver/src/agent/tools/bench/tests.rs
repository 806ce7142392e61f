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

#[test]
fn what_tools_remember_comes_back_from_a_record() {
    let memory = Memory {
        breakpoints: Breakpoints::listed("1   breakpoint   keep yes   at /testbed/a.py:6"),
        debugger: Some(Debugger {
            session: "pdb-1-t0-1".into(),
            entry: "python -m pdb a.py".into(),
            inputs: 9,
            frame: Some("/testbed/a.py".into()),
            stale: true,
        }),
    };
    let record = serde_json::to_value(&memory).unwrap();
    assert_eq!(Memory::deserialize(&record).unwrap(), memory);
    assert_eq!(Memory::deserialize(&serde_json::json!({})).unwrap(), Memory::default());
}
