//! The pool server's contract, call by call, as its client makes them.

use serde_json::{Value, json};

use crate::World;

const PATCH: &str = "diff --git a/f b/f\nindex 814f4a4..5626abf 100644\n--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n-one\n+ONE $(touch never)\n two\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollout_goes_through_as_the_client_makes_it() {
    let world = World::small().await;
    assert_eq!(world.get("/compat/pool/healthz").await, json!({"ok": true}));
    let leased = world
        .pool("/allocate", json!({"image": "task:1", "instance_id": "a__b-1"}))
        .await;
    let lease = leased["lease_id"].as_str().unwrap();
    assert!(lease.starts_with("swe-lease-") && lease.len() == 26, "{lease}");
    assert!(leased["node_url"].as_str().unwrap().ends_with("/compat/exec"));
    assert!(leased["container_id"].is_string());
    assert_eq!(
        world.pool("/heartbeat", json!({"lease_id": lease})).await,
        json!({"ok": true})
    );
    world.repository(lease).await;
    let result = world.exec(lease, "echo TWO > f; echo new > g; exit 3").await;
    assert_eq!(result, json!({"ok": true, "returncode": 3, "output": ""}));
    let diff = world
        .pool("/diff", json!({"lease_id": lease, "cwd": world.cwd()}))
        .await;
    assert_eq!((&diff["returncode"], &diff["error"]), (&json!(0), &json!("")));
    let patch = diff["patch"].as_str().unwrap();
    assert!(
        patch.starts_with("diff --git a/f b/f") && patch.contains("+new"),
        "{patch}"
    );
    let status = world.get("/compat/pool/status").await;
    let node = &status["pool"]["nodes"][0];
    assert_eq!(
        (&node["active_containers"], &node["max_containers"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(node["healthy"], true);
    assert_eq!(
        world.pool("/close", json!({"lease_id": lease})).await,
        json!({"ok": true})
    );
    assert_eq!(
        world.pool("/close", json!({"lease_id": lease})).await,
        json!({"ok": true})
    );
    assert_eq!(world.leases().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_missing_or_unknown_is_said_as_the_original_says_it() {
    let world = World::small().await;
    let unknown = json!({"lease_id": "swe-lease-0000000000000000", "command": "true"});
    for (path, body, status, error) in [
        ("/allocate", json!({}), 400, "image is required"),
        ("/heartbeat", json!({}), 400, "lease_id required"),
        ("/exec", json!({"lease_id": "x"}), 400, "lease_id and command required"),
        ("/diff", json!({"lease_id": null}), 400, "lease_id required"),
        ("/evaluate", json!({}), 400, "lease_id required"),
        ("/close", json!({}), 400, "lease_id required"),
        (
            "/heartbeat",
            unknown.clone(),
            500,
            "Unknown lease_id: swe-lease-0000000000000000",
        ),
        (
            "/exec",
            unknown.clone(),
            500,
            "Unknown lease_id: swe-lease-0000000000000000",
        ),
        (
            "/diff",
            unknown.clone(),
            500,
            "Unknown lease_id: swe-lease-0000000000000000",
        ),
        (
            "/evaluate",
            unknown,
            500,
            "Unknown lease_id: swe-lease-0000000000000000",
        ),
    ] {
        let (code, answer) = world.post(&format!("/compat/pool{path}"), body).await;
        assert_eq!(
            (code.as_u16(), &answer["ok"]),
            (status, &json!(false)),
            "{path}: {answer}"
        );
        assert_eq!(answer["error"], error, "{path}");
    }
}

async fn evaluate(world: &World, lease: &str, patch: &str, script: &str, timeout: u64) -> Value {
    let body =
        json!({"lease_id": lease, "patch": patch, "eval_script": script, "cwd": world.cwd(), "timeout": timeout});
    world.pool("/evaluate", body).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_patch_is_put_into_the_clean_repository_and_the_scripts_end_decides() {
    let world = World::small().await;
    let lease = world.allocate().await;
    world.repository(&lease).await;
    world.exec(&lease, "echo dirty > f; touch leftover").await;
    // One line that the original took for the end of the script, and a script that consumed the rest of itself from
    // standard input.
    let script = "cat > /dev/null\ncat <<'EOF'\ninside\nEOF\ncat f\n[ ! -e leftover ] && [ ! -e never ]\n";
    let result = evaluate(&world, &lease, PATCH, script, 30).await;
    assert_eq!(result["output"], "inside\nONE $(touch never)\ntwo\n", "{result}");
    assert_eq!((&result["resolved"], &result["returncode"]), (&json!(true), &json!(0)));
    assert_eq!(
        (&result["apply_returncode"], &result["output_truncated"]),
        (&json!(0), &json!(false))
    );
    for time in [
        "stage_started_at_ms",
        "apply_elapsed_ms",
        "eval_elapsed_ms",
        "total_elapsed_ms",
    ] {
        assert!(result["timing"][time].is_u64(), "{time}: {result}");
    }
    let result = evaluate(&world, &lease, PATCH, "exit 7", 30).await;
    assert_eq!((&result["resolved"], &result["returncode"]), (&json!(false), &json!(7)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evaluation_that_cannot_succeed_says_why() {
    let world = World::small().await;
    let lease = world.allocate().await;
    world.repository(&lease).await;
    let result = evaluate(&world, &lease, "no patch", "true", 30).await;
    assert_eq!(result["resolved"], false);
    assert!(result["error"].as_str().unwrap().starts_with("patch validation failed"));
    let misfit = PATCH.replace("-one", "-something else");
    let result = evaluate(&world, &lease, &misfit, "true", 30).await;
    assert_eq!(
        (&result["resolved"], &result["returncode"]),
        (&json!(false), &json!(-1))
    );
    assert!(
        result["error"].as_str().unwrap().starts_with("git apply failed: "),
        "{result}"
    );
    assert_ne!(result["apply_returncode"], 0);
    let result = evaluate(&world, &lease, PATCH, "echo so far; sleep 600", 5).await;
    assert_eq!(
        (&result["resolved"], &result["returncode"]),
        (&json!(false), &json!(-1))
    );
    assert_eq!(result["error"], "Evaluation timed out after 5s");
    assert_eq!(result["output"], "so far\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_share_a_pool_under_their_own_names_and_graders_have_their_share() {
    let world = World::small().await;
    let body = json!({"image": "task:1", "instance_id": "a__b-1__eval"});
    let (status, leased) = world.post("/compat/pool/team-a/allocate", body).await;
    assert_eq!(status, 200, "{leased}");
    let lease = leased["lease_id"].as_str().unwrap();
    let (run, priority) = world.gateway.core.look(|index| {
        let entry = &index.leases[lease].entry;
        (entry.run.clone(), entry.priority)
    });
    assert_eq!(
        (run.as_str(), priority),
        ("team-a", grpo_sandbox_protocol::Priority::Grader)
    );
    let (status, _) = world
        .post("/compat/pool/team-a/heartbeat", json!({"lease_id": lease}))
        .await;
    assert_eq!(status, 200);
}
