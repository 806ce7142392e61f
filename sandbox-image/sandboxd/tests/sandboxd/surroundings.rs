//! The user, the folder and the environment of commands.

use grpo_sandbox_protocol::{ExecState, Killed, OutputPart};

use crate::sandbox::{Sandbox, shell};

#[tokio::test]
async fn an_environment_is_set_up_once_for_all_commands_that_name_it() {
    let sandbox = Sandbox::bound().await;
    let (runs, tool) = (sandbox.path("runs"), sandbox.path("tool"));
    std::fs::write(
        &tool,
        format!("echo run >> {runs}; sleep 0.2; export TOOL=\"a b\nc\"; PATH=/opt/tool:$PATH"),
    )
    .unwrap();
    let activated = |id: &str| {
        let mut request = shell(id, "echo \"$TOOL $FROM_THE_IMAGE $GRPO_ACTIVATE\"; echo ${PATH%%:*}");
        request.activate = Some(format!("echo noise; . {tool}"));
        request
    };
    let requests: Vec<_> = ["e1", "e2", "e3"].map(activated).into();
    let results = futures::future::join_all(requests.iter().map(|request| sandbox.exec(request))).await;
    for result in results {
        assert_eq!(result.output, "a b\nc yes \n/opt/tool\n");
    }
    let mut own = activated("e4");
    own.env.insert("TOOL".into(), "mine".into());
    assert!(sandbox.exec(&own).await.output.starts_with("mine yes"));
    assert_eq!(std::fs::read_to_string(runs).unwrap(), "run\n");
    assert_eq!(sandbox.shell("e5", "echo $TOOL").await.output, "\n");
}

#[tokio::test]
async fn an_environment_that_cannot_be_set_up_is_said_and_tried_again() {
    let sandbox = Sandbox::bound().await;
    let tool = sandbox.path("tool");
    let activated = |id: &str| {
        let mut request = shell(id, "echo $TOOL");
        request.activate = Some(format!("echo trying; . {tool}"));
        request
    };
    let failed = sandbox.exec(&activated("e1")).await;
    assert_eq!((failed.exit_code, failed.killed), (Some(126), None));
    assert!(
        failed.output.contains("setting up its environment:\ntrying\n"),
        "{failed:?}"
    );
    std::fs::write(&tool, "export TOOL=there").unwrap();
    assert_eq!(sandbox.exec(&activated("e2")).await.output, "there\n");
    let mut endless = shell("e3", "true");
    endless.activate = Some("sleep 1000".into());
    endless.timeout_seconds = 1;
    let endless = sandbox.exec(&endless).await;
    assert_eq!((endless.timed_out, endless.killed), (true, Some(Killed::Timeout)));
    assert!(endless.duration_millis < 20_000);
}

#[tokio::test]
async fn a_command_runs_as_the_user_it_names() {
    let sandbox = Sandbox::bound().await;
    let mut request = shell("e1", "id -u; id -g; id -G; echo $USER $HOME");
    request.user = Some("nobody-of-this-image".into());
    let unknown = sandbox.exec(&request).await;
    assert_eq!(unknown.exit_code, Some(126));
    assert!(unknown.output.contains("has no user nobody-of-this-image"));
    if !nix::unistd::geteuid().is_root() {
        eprintln!("left out: only root can become somebody else");
        return;
    }
    request.id = "e2".into();
    request.user = Some("4242:4243".into());
    assert_eq!(sandbox.exec(&request).await.output, "4242\n4243\n4243\n4242 /\n");
}

#[tokio::test]
async fn a_command_and_what_it_starts_give_way_to_sandboxd() {
    let sandbox = Sandbox::bound().await;
    let niceness = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let after_name = stat.rsplit_once(')').unwrap().1;
        after_name.split_whitespace().nth(16).unwrap().to_owned()
    };
    let mut begun = shell("e1", "sleep 1000 & echo $!; wait");
    begun.timeout_seconds = 60;
    let _: ExecState = sandbox.call("/exec/start", &begun).await;
    let printed: OutputPart = sandbox.look("/exec/output?id=e1&waitSeconds=20").await;
    let child = String::from_utf8(printed.data).unwrap();
    assert_eq!(niceness(child.trim()), "19");
    assert_ne!(niceness(&sandbox.process.id().to_string()), "19");
}
