use super::*;
use crate::tasks::TaskEnvironment;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

fn limits() -> AgentLimits {
    AgentLimits {
        turns: 7,
        command_timeout: Duration::from_secs(10),
        episode_timeout: Duration::from_secs(60),
        context_tokens: 1024,
        prompt_tokens: None,
        episode_tokens: None,
        output_bytes: 4096,
    }
}

fn task() -> Task {
    Task {
        index: 0,
        instance: "a".into(),
        image: "img".into(),
        base_commit: None,
        environment: TaskEnvironment {
            directory: "/testbed".into(),
            variables: BTreeMap::new(),
            activation: None,
            setup: String::new(),
            hidden: Vec::new(),
            test_command: None,
        },
        installs: None,
        row: Arc::new(json!({"problem_statement": "Mend {{ it }}.", "patch": "the fix"})),
        sha256: "00".into(),
        graded_sha256: "00".into(),
        revealed: Vec::new(),
    }
}

fn line(fields: serde_json::Value) -> Result<CommandLine, minijinja::Error> {
    let mut spec = json!({"image": "img"});
    spec.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    let cli: CliAgent = serde_json::from_value(spec).unwrap();
    CliLoop::new(&cli, &limits(), true)?.command_line(&task(), 100)
}

#[test]
fn a_command_is_rendered_with_what_the_api_promises() {
    let words = [
        "{{ prompt }}",
        "{{ system }}",
        "{{ baseUrl }}",
        "{{ model }}",
        "{{ limits.turns }}",
    ];
    let rendered = line(
        json!({"command": words, "task": "Do: {{ task.problem_statement }}", "system": "At most {{ limits.turns }}."}),
    );
    let rendered = rendered.unwrap();
    let wanted = [
        "Do: Mend {{ it }}.",
        "At most 7.",
        "http://127.0.0.1:48271/v1",
        "policy",
        "7",
    ];
    assert_eq!(rendered.argv, wanted);
    assert_eq!(rendered.stdin, wanted[0].as_bytes());
}

#[test]
fn a_preset_gets_the_tasks_words() {
    let rendered = line(json!({"preset": "QwenCode", "bare": true})).unwrap();
    assert!(rendered.argv.iter().any(|word| word == "--bare"));
    assert_eq!(rendered.stdin, b"Mend {{ it }}.");
}

#[test]
fn what_gives_the_answer_away_cannot_be_told() {
    assert!(line(json!({"command": ["{{ task.patch }}"]})).is_err());
    assert!(line(json!({"command": ["{{ nothing }}"]})).is_err());
}

#[test]
fn an_agent_reaches_its_endpoint_past_every_proxy() {
    fn named(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }
    let proxy = ("HTTP_PROXY", "http://proxy:3128");
    let loopback = "127.0.0.1,localhost";
    let with_loopback = |host: &str| format!("{host},{loopback}");
    let (mirror, other) = (with_loopback("mirror.local"), with_loopback("other"));
    let (mirror, other) = (mirror.as_str(), other.as_str());
    for (given, lower, upper) in [
        (vec![], loopback, loopback),
        (vec![("NO_PROXY", "mirror.local")], mirror, mirror),
        (vec![("no_proxy", "mirror.local")], mirror, mirror),
        (vec![("no_proxy", "mirror.local"), ("NO_PROXY", "other")], mirror, other),
        (vec![("no_proxy", ""), ("NO_PROXY", "mirror.local")], mirror, mirror),
        (vec![("no_proxy", "")], loopback, loopback),
        (vec![("no_proxy", "*"), ("NO_PROXY", "other")], "*", other),
    ] {
        let mut env = named(&given);
        env.extend(named(&[proxy]));
        bypass_proxies(&mut env);
        assert_eq!(
            env,
            named(&[proxy, ("no_proxy", lower), ("NO_PROXY", upper)]),
            "{given:?}"
        );
    }
}
