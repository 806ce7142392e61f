//! Defects of the original systems that must not occur here.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;

use crate::played::bounds;
use crate::{World, answer, until};
use grpo_gateway::index::Bounds;

/// Leases that expire after 3 seconds without a call.
fn short_lived(max: usize) -> Bounds {
    Bounds {
        max_ttl_millis: 3_000,
        ..bounds(max)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_of_which_nobody_speaks_ends_and_so_does_its_sandbox() {
    let world = World::of(short_lived(2)).await;
    let lease = world.allocate().await;
    until("the lease to end", async || world.leases().await == 0).await;
    until("its pod to go", async || world.server.pods.lock().unwrap().is_empty()).await;
    let (status, body) = world.post("/compat/pool/heartbeat", json!({"lease_id": lease})).await;
    assert_eq!((status.as_u16(), &body["ok"]), (500, &json!(false)), "{body}");
    assert!(body["error"].as_str().unwrap().contains(&lease), "{body}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_keep_a_lease_beyond_its_time() {
    let world = World::of(short_lived(2)).await;
    // The one that is kept comes last: the other may end while its sandbox starts.
    let (left, kept) = (world.allocate().await, world.allocate().await);
    until("the other lease to end", async || {
        world.pool("/heartbeat", json!({"lease_id": kept})).await;
        world.leases().await == 1
    })
    .await;
    assert_eq!(world.exec(&kept, "echo there").await["output"], "there\n");
    let (status, _) = world.post("/compat/pool/heartbeat", json!({"lease_id": left})).await;
    assert_eq!(status, 500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_keeps_its_lease_however_long_it_takes() {
    let world = World::of(short_lived(1)).await;
    let lease = world.allocate().await;
    let result = world.exec(&lease, "sleep 7; echo done").await;
    assert_eq!(
        (&result["returncode"], &result["output"]),
        (&json!(0), &json!("done\n"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_and_what_is_in_their_sandboxes_survive_a_restart_of_the_gateway() {
    let world = World::small().await;
    let lease = world.allocate().await;
    world.exec(&lease, "echo kept > note").await;
    let world = world.restart().await;
    world.pool("/heartbeat", json!({"lease_id": lease})).await;
    assert_eq!(world.exec(&lease, "cat note").await["output"], "kept\n");
    assert_eq!(world.leases().await, 1);
    world.pool("/close", json!({"lease_id": lease})).await;
    assert_eq!(world.leases().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_comes_to_a_full_pool_waits_for_a_turn() {
    let world = Arc::new(World::of(bounds(1)).await);
    let first = world.allocate().await;
    let second = tokio::spawn({
        let world = world.clone();
        async move { world.allocate().await }
    });
    until("the second to wait", async || {
        world.gateway.core.look(|index| index.queue.len()) == 1
    })
    .await;
    assert!(!second.is_finished());
    world.pool("/close", json!({"lease_id": first})).await;
    let second = second.await.unwrap();
    assert_eq!(world.exec(&second, "echo mine").await["output"], "mine\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_that_cannot_be_deleted_still_counts() {
    let world = Arc::new(World::of(bounds(1)).await);
    let first = world.allocate().await;
    world.server.keeps_pods.store(true, Ordering::Relaxed);
    let closing = tokio::spawn({
        let world = world.clone();
        async move { world.post("/compat/pool/close", json!({"lease_id": first})).await }
    });
    let second = tokio::spawn({
        let world = world.clone();
        async move { world.allocate().await }
    });
    until("the deletion to be ordered again", async || {
        world.server.kept.load(Ordering::Relaxed) >= 2
    })
    .await;
    assert!(!second.is_finished() && !closing.is_finished());
    assert_eq!(world.server.pods.lock().unwrap().len(), 1);
    world.server.keeps_pods.store(false, Ordering::Relaxed);
    second.await.unwrap();
    assert_eq!(closing.await.unwrap().0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_out_of_time_is_killed_with_all_it_started_and_what_it_printed_is_kept() {
    let world = World::small().await;
    let lease = world.allocate().await;
    let command = "echo before; sleep 600 & echo $! > pid; wait";
    let body = json!({"lease_id": lease, "command": command, "cwd": world.cwd(), "timeout": 5});
    let result = world.pool("/exec", body).await;
    assert_eq!(result["returncode"], -1);
    assert_eq!(result["output"], "before\nCommand timed out after 5s");
    let pid = std::fs::read_to_string(world.path("pid")).unwrap();
    let stat = format!("/proc/{}/stat", pid.trim());
    until("its child to be gone", async || {
        std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_made_again_after_its_connection_broke_runs_once() {
    let world = World::small().await;
    let lease = world.allocate().await;
    let command = "echo run >> runs; until [ -e go ]; do sleep 0.02; done; wc -l < runs";
    let body = json!({"lease_id": lease, "command": command, "cwd": world.cwd(), "timeout": 60});
    let running = || world.gateway.core.look(|index| index.leases[&lease].running);
    let first = {
        let request = world.request("/compat/pool/exec", &body);
        tokio::spawn(request.send())
    };
    until("the command to run", async || world.path("runs").exists()).await;
    first.abort();
    until("the gateway to notice", async || running() == 0).await;
    let again = {
        let request = world.request("/compat/pool/exec", &body);
        tokio::spawn(answer(request))
    };
    until("it to be waited for again", async || running() == 1).await;
    std::fs::write(world.path("go"), "").unwrap();
    let (_, result) = again.await.unwrap();
    assert_eq!(result["output"].as_str().unwrap().trim(), "1", "{result}");
    // A later call, from a client that got the answer, runs again.
    let (_, result) = world.post("/compat/pool/exec", body).await;
    assert_eq!(result["output"].as_str().unwrap().trim(), "2", "{result}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_have_a_name_are_done_once_however_often_they_are_made() {
    let world = World::small().await;
    let allocate = || {
        let request = world.request("/compat/pool/allocate", &json!({"image": "task:1"}));
        answer(request.header("X-Request-Id", "allocate-1"))
    };
    let ((_, first), (_, again)) = (allocate().await, allocate().await);
    assert_eq!(first["lease_id"], again["lease_id"]);
    assert_eq!(world.leases().await, 1);
    let exec = |name: &str| {
        let body = json!({"lease_id": first["lease_id"], "command": "echo run >> runs; wc -l < runs", "cwd": world.cwd(),
            "request_id": name});
        answer(world.request("/compat/pool/exec", &body))
    };
    for (name, runs) in [("one", "1"), ("one", "1"), ("two", "2")] {
        let (_, result) = exec(name).await;
        assert_eq!(result["output"].as_str().unwrap().trim(), runs, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_allocation_made_again_after_its_connection_broke_keeps_its_place_and_leaks_nothing() {
    let world = World::of(bounds(1)).await;
    let first = world.allocate().await;
    let body = json!({"image": "task:1", "instance_id": "a__b-2"});
    let waiting = || {
        let core = &world.gateway.core;
        core.look(|index| {
            index
                .queue
                .iter()
                .map(|waiter| waiter.request.id.clone())
                .collect::<Vec<_>>()
        })
    };
    let lost = tokio::spawn(world.request("/compat/pool/allocate", &body).send());
    until("it to wait", async || waiting().len() == 1).await;
    let place = waiting();
    lost.abort();
    let _ = lost.await;
    // As the client does: the gateway must have noticed that the connection is gone.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let again = tokio::spawn(answer(world.request("/compat/pool/allocate", &body)));
    world.pool("/close", json!({"lease_id": first})).await;
    let (_, leased) = again.await.unwrap();
    assert_eq!(leased["lease_id"], json!(place[0]), "{leased}");
    assert_eq!((world.leases().await, waiting().len()), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_goes_to_standard_error_stands_where_it_was_written() {
    let world = World::small().await;
    let lease = world.allocate().await;
    let result = world.exec(&lease, "echo 1; echo 2 >&2; echo 3; echo 4 >&2").await;
    assert_eq!(result["output"], "1\n2\n3\n4\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_has_limits_and_no_token_and_obeys_its_gateway_only() {
    let spec = "allowUnenforced: true\nresources: {limits: {cpu: '2', memory: 4Gi}}";
    let world = World::with(bounds(1), spec).await;
    world.allocate().await;
    let pod = world.server.pods.lock().unwrap().values().next().unwrap().clone();
    let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!((&limits["cpu"], &limits["memory"]), (&json!("2"), &json!("4Gi")));
    assert_eq!(pod["spec"]["automountServiceAccountToken"], false);
    assert!(pod["spec"]["volumes"].to_string().find("hostPath").is_none());
    let sandboxd = format!("http://{}:7070/exec", pod["status"]["podIP"].as_str().unwrap());
    let unsigned = world.http.post(sandboxd).body("{}").send().await.unwrap();
    assert_eq!(unsigned.status(), 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_is_not_shown_to_be_cut_off_leases_to_nobody() {
    let world = World::with(bounds(1), "").await;
    let body = json!({"image": "task:1", "timeout": 1});
    let (status, body) = world.post("/compat/exec/container/create", body).await;
    assert_eq!(
        (status.as_u16(), &body["code"]),
        (500, &json!("EgressUnproven")),
        "{body}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_gets_the_environment_it_is_given_and_the_clients_configured_one() {
    let world = World::small().await;
    let lease = world.allocate().await;
    let body = json!({"lease_id": lease, "command": "echo $MINE $PAGER $TQDM_DISABLE", "cwd": world.cwd(),
        "env": {"MINE": "yes", "TQDM_DISABLE": 0}});
    assert_eq!(world.pool("/exec", body).await["output"], "yes cat 0\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_that_are_replaced_without_being_closed_are_taken_back() {
    let world = World::of(short_lived(1)).await;
    // The pool has room for one, and the client closes no sandbox.
    let mut leases = Vec::new();
    for _ in 0..3 {
        leases.push(world.allocate().await);
    }
    leases.dedup();
    assert_eq!(leases.len(), 3);
    assert!(world.server.pods.lock().unwrap().len() <= 1);
}
