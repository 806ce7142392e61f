use super::*;

fn switches() -> Switches {
    Switches {
        toolset: Toolset::Pdb,
        grep: true,
        bash: false,
        directory_tree: true,
        keep_breakpoints: true,
        eval_after_rewrite: false,
        list_after_continue: false,
    }
}

fn names(switches: &Switches) -> Vec<String> {
    let tools: serde_json::Value = serde_json::from_str(&tools(switches)).unwrap();
    let tools = tools.as_array().unwrap();
    let name = |tool: &serde_json::Value| tool["function"]["name"].as_str().unwrap().to_owned();
    tools.iter().map(name).collect()
}

#[test]
fn tools_are_offered_as_the_switches_say() {
    assert_eq!(
        names(&switches()),
        ["view", "listdir", "eval", "rewrite", "pdb", "grep"]
    );
    let other = Switches {
        toolset: Toolset::Rewrite,
        grep: false,
        bash: true,
        ..switches()
    };
    assert_eq!(names(&other), ["view", "listdir", "eval", "rewrite", "bash"]);
}

#[test]
fn schemas_have_the_keys_of_the_original_in_its_order() {
    let all = tools(&switches());
    assert!(
        all.starts_with(r#"[{"type": "function", "function": {"name": "view", "description": "Specify a file path"#)
    );
    assert!(all.contains(
        r#""additionalProperties": false, "required": ["path", "start", "end", "include_line_numbers_and_breakpoints"]}}}"#
    ));
    assert!(all.contains(r#""start": {"type": ["number", "null"], "description""#));
    assert!(all.contains(r#""parameters": {"type": "object", "properties": {}, "additionalProperties": false}}}"#));
}

#[test]
fn system_prompts_are_those_of_the_sets() {
    assert!(system(Toolset::Pdb).starts_with("You are a debugging agent specialized in fixing Python programs."));
    assert!(system(Toolset::Rewrite).starts_with("You are a rewrite agent specialized in fixing Python programs."));
    for toolset in [Toolset::Pdb, Toolset::Rewrite] {
        assert!(
            system(toolset)
                .ends_with("Output both your thinking process (if any) and the tool call (must) in the response. ")
        );
    }
    assert_eq!(
        files("/testbed", "/testbed/\n|-- test.py"),
        "\n\nCurrent dir is /testbed. Listing files in the current working directory./testbed/\n|-- test.py (read-only) \
         indicates read-only files. Max depth: 1.\n"
    );
}
