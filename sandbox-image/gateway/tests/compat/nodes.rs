//! The exec server's contract, call by call, as the pool server makes them.

use serde_json::{Value, json};

use crate::World;

async fn call(world: &World, path: &str, body: Value) -> Value {
    let (status, answer) = world.post(&format!("/compat/exec/container{path}"), body).await;
    assert_eq!(
        (status.as_u16(), &answer["ok"]),
        (200, &json!(true)),
        "{path}: {answer}"
    );
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_is_created_used_and_destroyed() {
    let world = World::small().await;
    let created = call(
        &world,
        "/create",
        json!({"image": "task:1", "cwd": "/testbed", "timeout": 120}),
    )
    .await;
    let id = created["container_id"].as_str().unwrap();
    assert_eq!((id.len(), &created["name"]), (64, &json!(format!("swe-{}", &id[..12]))));
    let health = world.get("/compat/exec/healthz").await;
    assert_eq!(health, json!({"ok": true, "running_containers": "1"}));
    let images = world.get("/compat/exec/images").await;
    assert_eq!(images, json!({"ok": true, "count": 1, "images": ["task:1"]}));
    let status = world.get("/compat/exec/status").await;
    assert_eq!(status["active_containers"], 1);
    let shown = &status["containers"][&id[..12]];
    assert_eq!((&shown["name"], &shown["image"]), (&created["name"], &json!("task:1")));
    assert!(shown["created_at"].as_f64().unwrap() > 1e9);
    let exec =
        json!({"container_id": id, "command": "echo out; echo err >&2; exit 5", "cwd": world.cwd(), "timeout": "20"});
    let result = call(&world, "/exec", exec).await;
    assert_eq!(result, json!({"ok": true, "returncode": 5, "output": "out\nerr\n"}));
    let diff = call(&world, "/diff", json!({"container_id": id, "cwd": world.cwd()})).await;
    assert_eq!(
        (&diff["patch"], &diff["returncode"]),
        (&json!(""), &json!(128)),
        "no repository: {diff}"
    );
    assert!(diff["error"].as_str().unwrap().contains("not a git repository"));
    let evaluated = call(
        &world,
        "/evaluate",
        json!({"container_id": id, "patch": "", "eval_script": "true"}),
    )
    .await;
    assert_eq!(evaluated["resolved"], false);
    for _ in 0..2 {
        assert_eq!(
            call(&world, "/destroy", json!({"container_id": id})).await,
            json!({"ok": true})
        );
    }
    assert_eq!(world.get("/compat/exec/status").await["active_containers"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_list_shows_gives_nobody_the_use_of_a_container() {
    let world = World::small().await;
    let created = call(&world, "/create", json!({"image": "task:1"})).await;
    let id = created["container_id"].as_str().unwrap();
    for shown in [&id[..12], created["name"].as_str().unwrap()] {
        let body = json!({"container_id": shown, "command": "true"});
        let (status, answer) = world.post("/compat/exec/container/exec", body).await;
        assert_eq!((status.as_u16(), &answer["ok"]), (500, &json!(false)), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_missing_is_said() {
    let world = World::small().await;
    for (path, error) in [
        ("create", "image is required"),
        ("exec", "container_id and command are required"),
        ("diff", "container_id is required"),
        ("evaluate", "container_id is required"),
        ("destroy", "container_id is required"),
    ] {
        let (status, answer) = world.post(&format!("/compat/exec/container/{path}"), json!({})).await;
        assert_eq!((status.as_u16(), &answer["error"]), (400, &json!(error)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_is_not_there_is_the_commands_failure_and_not_the_servers() {
    let world = World::small().await;
    let created = call(&world, "/create", json!({"image": "task:1"})).await;
    let body = json!({"container_id": created["container_id"], "command": "true", "cwd": "/no/such/folder"});
    let result = call(&world, "/exec", body).await;
    assert_ne!(result["returncode"], 0);
    assert!(
        result["output"].as_str().unwrap().contains("/no/such/folder"),
        "{result}"
    );
}
