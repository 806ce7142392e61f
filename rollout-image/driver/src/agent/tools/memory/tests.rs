use super::*;

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
