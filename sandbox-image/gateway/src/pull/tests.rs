use super::*;

const SANDBOXD: &str = "grpo.dev/sandboxd:dev";
const AGENT: &str = "grpo.dev/cli/agent:1";

fn told(image: &str, waiting: &str) -> Option<PullFailure> {
    let text = format!(
        "metadata: {{name: s}}\nspec: {{containers: [{{name: sandbox, image: '{image}'}}]}}\nstatus:\n  containerStatuses:\n  \
             - {{name: sandbox, image: i, imageID: '', ready: false, restartCount: 0, state: {{waiting: {waiting}}}}}"
    );
    let sandboxd = Culprit::Sandboxd {
        image: SANDBOXD.to_owned(),
    };
    let agent = Culprit::Agent {
        image: AGENT.to_owned(),
    };
    pull_failure(&serde_yaml_ng::from_str(&text).unwrap(), [sandboxd, agent])
}

#[test]
fn the_first_failure_is_not_the_last_word_and_a_backoff_is() {
    for (reason, is_final) in [
        ("ErrImagePull", Some(false)),
        ("ImagePullBackOff", Some(true)),
        ("InvalidImageName", Some(true)),
        ("ErrImageNeverPull", Some(true)),
        ("ContainerCreating", None),
        ("CreateContainerError", None),
    ] {
        let failure = told("task:1", &format!("{{reason: {reason}}}"));
        assert_eq!(failure.map(|failure| failure.is_final), is_final, "{reason}");
    }
}

#[test]
fn the_image_that_the_message_names_is_the_one_to_blame() {
    let backoff = |image: &str| {
        format!("{{reason: ImagePullBackOff, message: 'Back-off pulling image \"{image}\": ErrImagePull: not found'}}")
    };
    let sandboxd = Culprit::Sandboxd {
        image: SANDBOXD.to_owned(),
    };
    let agent = Culprit::Agent {
        image: AGENT.to_owned(),
    };
    for (task, named, culprit) in [
        ("task:1", "task:1", Culprit::Task),
        ("task:1", SANDBOXD, sandboxd.clone()),
        // One name is the end of another.
        ("sandboxd:dev", SANDBOXD, sandboxd.clone()),
        ("sandboxd:dev", "docker.io/library/sandboxd:dev", Culprit::Task),
        ("boxd:dev", SANDBOXD, sandboxd),
        (
            "mirror/grpo.dev/sandboxd:dev",
            "mirror/grpo.dev/sandboxd:dev",
            Culprit::Task,
        ),
        ("grpo.dev/sandboxd:dev-1", "grpo.dev/sandboxd:dev-1", Culprit::Task),
        ("task:1", AGENT, agent.clone()),
        ("agent:1", AGENT, agent),
        ("task:1", "grpo.dev/cli/another:1", Culprit::Task),
    ] {
        let failure = told(task, &backoff(named)).unwrap();
        assert_eq!(failure.culprit, culprit, "{task}: {named}");
    }
}

#[test]
fn a_short_name_is_known_in_its_full_form() {
    let full = "failed to pull and unpack image \"docker.io/library/a:1\": failed to resolve";
    assert!(mentions(full, "a:1"));
    assert!(mentions("pulling image \"docker.io/library/a:latest\"", "a"));
    assert!(!mentions(full, "a:12"));
    assert!(!mentions(full, "ocker.io/library/a:1"));
}
