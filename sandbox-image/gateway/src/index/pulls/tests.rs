use super::*;

fn failure(culprit: Culprit) -> PullFailure {
    PullFailure {
        culprit,
        is_final: true,
        message: "not found".into(),
    }
}

#[test]
fn an_image_is_left_alone_for_longer_every_time_and_forgiven_once_it_could_be_had() {
    let mut pulls = Pulls::default();
    let mut now = 0;
    for pause in [5, 10, 20, 40, 80, 160, 300, 300] {
        pulls.failed("x", &failure(Culprit::Task), now);
        pulls.failed("x", &failure(Culprit::Task), now + 1);
        assert_eq!(
            pulls.next_try(now),
            Some(now + pause * 1000),
            "pods that fail together are one failure"
        );
        now += pause * 1000;
        assert!(pulls.refusal("x", now - 1).is_some());
        assert_eq!(pulls.refusal("x", now), None);
        assert!(pulls.is_suspect("x", now), "one pod tries it");
    }
    pulls.succeeded("x");
    pulls.failed("x", &failure(Culprit::Task), now);
    assert_eq!(pulls.next_try(now), Some(now + 5_000));
}

#[test]
fn sandboxds_image_is_named_and_no_task_is_blamed_for_it() {
    let mut pulls = Pulls::default();
    let image = "grpo.dev/sandboxd:1".to_owned();
    pulls.failed("x", &failure(Culprit::Sandboxd { image }), 0);
    let shown = pulls.troubles(1);
    assert_eq!(
        (shown[0].image.as_str(), shown[0].code),
        ("grpo.dev/sandboxd:1", ErrorCode::Unavailable)
    );
    assert_eq!((shown[0].failures, shown[0].until), (1, 5_000));
    assert_eq!(pulls.troubles(5_000), []);
    for task in ["x", "y"] {
        assert!(pulls.is_suspect(task, 5_000));
        let error = pulls.refusal(task, 1).unwrap();
        assert_eq!(error.code, ErrorCode::Unavailable);
        assert!(error.message.contains("sandboxd, grpo.dev/sandboxd:1,"), "{error}");
    }
    pulls.succeeded("y");
    assert_eq!(pulls.refusal("x", 1), None);
}

#[test]
fn the_agents_image_is_named_and_the_remedy_is_the_runs_or_the_pools() {
    let mut pulls = Pulls::default();
    let sandboxd = "grpo.dev/sandboxd:1".to_owned();
    pulls.failed("x", &failure(Culprit::Sandboxd { image: sandboxd }), 0);
    let agent = "grpo.dev/cli/agent:1".to_owned();
    pulls.failed("x", &failure(Culprit::Agent { image: agent }), 1);
    let shown = pulls.troubles(2);
    assert_eq!(shown.len(), 1, "of two volumes the one that failed last is told");
    assert_eq!(
        (shown[0].image.as_str(), shown[0].code),
        ("grpo.dev/cli/agent:1", ErrorCode::Unavailable)
    );
    let error = pulls.refusal("y", 2).unwrap();
    for words in ["the agent, grpo.dev/cli/agent:1,", "agent.cli.image", "agentImage"] {
        assert!(error.message.contains(words), "{error}");
    }
}
