//! A trainer of two ranks under every fault that a cluster can cause, on a control plane without nodes. It measures the
//! time from the moment when all ranks have room until all ranks of the next attempt run, the counted failures, and the
//! remains of the previous attempt.
//!
//! The operator, API server, scheduler with its preemption, and Eviction API are real; KWOK simulates nodes and pods,
//! so the figure is the operator's share of a pod's start. The test itself writes what kubelets, the node controller
//! and taint eviction would write. One run goes through all faults, one after another.
//!
//! Needs the programs that `make setup` builds and the operator's binary: `make test-operator`.

mod world;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use grpo_bench::operator_bench::rig::{parsed, until};
use grpo_contracts::exit::{HUNG_CODE, Hang, PEER_LOST_CODE};
use grpo_crds::grpo_run::Phase;
use grpo_testing::cluster::{api, wait::is_ready};
use jiff::Timestamp;
use kube::{
    ResourceExt,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use world::{GPU, LIMIT, NAME, PATIENCE, Result, Row, World, attempts, condition, holds, node_of, variable};

/// Figure 5.
const BAR: Duration = Duration::from_secs(10);
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const TAINT_EVICTION: &str = "DeletionByTaintManager";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a control plane: make test-operator"]
async fn after_every_fault_all_ranks_run_within_ten_seconds_of_room_and_only_the_runs_own_failures_count() -> Result<()>
{
    let mut world = World::start().await?;
    world.a_pod_is_killed().await?;
    world.a_node_is_lost().await?;
    world.a_node_is_drained().await?;
    world.an_image_does_not_come().await?;
    world.a_pod_is_preempted().await?;
    world.a_rank_hangs().await?;
    world.a_rank_loses_its_peer().await?;
    world.a_rank_fails_again().await?;
    world.the_limit_is_used_up().await?;

    println!("{:<48} {:>7} {:>9} {:>9}", "fault", "seconds", "attempt", "counted");
    for row in &world.rows {
        println!(
            "{:<48} {:>7.2} {:>9} {:>9}",
            row.fault, row.seconds, row.attempt, row.counted
        );
    }
    world.operator.runs()?;
    let late: Vec<&Row> = world
        .rows
        .iter()
        .filter(|row| row.seconds > BAR.as_secs_f64())
        .collect();
    assert!(late.is_empty(), "{late:?}");
    Ok(())
}

/// Each function takes the run from one attempt to the next.
impl World {
    async fn a_pod_is_killed(&mut self) -> Result<()> {
        let victim = self.rank(1, 1).await?;
        let since = Instant::now();
        self.delete(&victim.name_any(), &DeleteParams::default().grace_period(0))
            .await?;
        self.back("pod killed", since, 2, 0).await
    }

    /// Acts as node controller and taint eviction: the node is not ready and tainted; its pods are not ready, then
    /// marked and deleted. No kubelet reports their end, so they stay.
    async fn a_node_is_lost(&mut self) -> Result<()> {
        let stuck = self.rank(2, 0).await?;
        let (node, name) = (node_of(&stuck), stuck.name_any());
        self.silence_pod(&name, true).await?;
        self.silence_node(&node).await?;
        let taints = [
            (GPU, "NoSchedule"),
            (UNREACHABLE, "NoSchedule"),
            (UNREACHABLE, "NoExecute"),
        ]
        .map(|(key, effect)| json!({"key": key, "effect": effect}));
        self.patch_node(&node, &json!({"spec": {"taints": taints}})).await?;
        let at = Timestamp::now();
        let unready = json!({"type": "Ready", "status": "False", "lastTransitionTime": at});
        let marked = json!({"type": "DisruptionTarget", "status": "True", "reason": TAINT_EVICTION, "message": "Taint manager: deleting due to NoExecute taint", "lastTransitionTime": at});
        self.patch_pod_status(&name, json!({"conditions": [unready, marked]}))
            .await?;
        self.delete(&name, &DeleteParams::default()).await?;
        self.waits_for_room(3).await?;
        self.gpu_node("gpu-2").await?;
        self.back("node lost, its pod stuck terminating", Instant::now(), 3, 0)
            .await?;

        let stuck = self.pods.get(&stuck.name_any()).await;
        let stuck = stuck.map_err(api("reading the pod that is stuck on", node))?;
        assert!(stuck.metadata.deletion_timestamp.is_some());
        self.ended_for(&name, TAINT_EVICTION).await?;
        let disrupted = condition(&stuck, "DisruptionTarget").unwrap();
        assert_eq!(disrupted.reason.as_deref(), Some(TAINT_EVICTION));
        // Its writes would carry an attempt that the store fences off, and the name of its attempt's rendezvous is
        // gone.
        assert_eq!(variable(&stuck, "GRPO_ATTEMPT").as_deref(), Some("2"));
        Ok(())
    }

    async fn a_node_is_drained(&mut self) -> Result<()> {
        let pod = self.rank(3, 0).await?.name_any();
        // It uses its grace period, as pods do.
        self.silence_pod(&pod, true).await?;
        let node = self.drain(3).await?;
        self.waits_for_room(4).await?;
        self.ended_for(&pod, "EvictionByEvictionAPI").await?;
        let since = Instant::now();
        self.silence_pod(&pod, false).await?;
        self.cordon(&node, false).await?;
        self.back("node drained", since, 4, 0).await
    }

    async fn an_image_does_not_come(&mut self) -> Result<()> {
        let node = self.drain(4).await?;
        self.waits_for_room(5).await?;
        let waits = self.rank(5, 0).await?.name_any();
        self.silence_pod(&waits, true).await?;
        self.cordon(&node, false).await?;
        until(PATIENCE, "the pod to be bound", async || {
            let pod = self.pods.get(&waits).await.map_err(api("reading pod", &waits))?;
            let bound = pod.spec.is_some_and(|spec| spec.node_name.is_some());
            Ok(bound.then_some(()).ok_or_else(|| "not bound".to_owned()))
        })
        .await?;
        for reason in ["ErrImagePull", "ImagePullBackOff"] {
            let said = format!("{reason}: 503 from the registry");
            let state = json!({"waiting": {"reason": reason, "message": said}});
            self.says(&waits, "Pending", state).await?;
            self.told(&said).await?;
        }
        let run = self.seen().await?;
        assert_eq!(attempts(&run).current, 5, "an image is waited for");
        let since = Instant::now();
        self.silence_pod(&waits, false).await?;
        self.back("image cannot be pulled, then comes", since, 5, 0).await
    }

    /// The scheduler itself makes room for a pod with a higher priority.
    async fn a_pod_is_preempted(&mut self) -> Result<()> {
        let ranks = [self.rank(5, 0).await?.name_any(), self.rank(5, 1).await?.name_any()];
        for pod in &ranks {
            self.silence_pod(pod, true).await?;
        }
        let urgent = parsed(json!({
            "metadata": {"name": "urgent"},
            "spec": {
                "priorityClassName": "urgent",
                "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
                "containers": [{"name": "urgent", "image": "example.com/urgent:1", "resources": {"limits": {GPU: "1"}}}],
            },
        }));
        self.pods
            .create(&PostParams::default(), &urgent)
            .await
            .map_err(api("creating pod", "urgent"))?;
        self.waits_for_room(6).await?;
        self.ended_for(&format!("{NAME}-trainer-5-"), "PreemptionByScheduler")
            .await?;
        for pod in &ranks {
            self.silence_pod(pod, false).await?;
        }
        until(PATIENCE, "the urgent pod to run", async || {
            let pod = self.pods.get("urgent").await.map_err(api("reading pod", "urgent"))?;
            Ok(is_ready(&pod).then_some(()).ok_or_else(|| format!("{:?}", pod.status)))
        })
        .await?;
        // Room on another node than the one that was taken.
        self.gpu_node("gpu-3").await?;
        self.back("pod preempted by the scheduler", Instant::now(), 6, 0).await
    }

    async fn a_rank_hangs(&mut self) -> Result<()> {
        self.gpu_node("gpu-4").await?;
        let (says, hangs) = (self.rank(6, 0).await?, self.rank(6, 1).await?);
        let hang = Hang {
            message: "rank 0 waited 120 s in all-gather of step 4: rank 1 did not arrive".to_owned(),
            ranks: vec![1],
            pods: vec![1],
        };
        let since = Instant::now();
        self.ends(&says.name_any(), HUNG_CODE, &serde_json::to_string(&hang).unwrap())
            .await?;
        self.back("rank hangs (exit code 43)", since, 7, 1).await?;
        let (avoided, run) = (node_of(&hangs), self.seen().await?);
        assert_eq!(attempts(&run).avoid_nodes, std::slice::from_ref(&avoided));
        let failure = attempts(&run).last_failure.unwrap_or_default();
        assert!(
            failure.contains("rank 1 did not arrive") && failure.contains(&avoided),
            "{failure}"
        );
        let used: BTreeSet<String> = self.ranks(7).await?.iter().map(node_of).collect();
        assert!(!used.contains(&avoided), "{used:?}");
        Ok(())
    }

    /// After finished work the count starts at zero, and the node of the hung rank is used again.
    async fn a_rank_loses_its_peer(&mut self) -> Result<()> {
        self.finishes("l1-v1").await?;
        let pod = self.rank(7, 0).await?.name_any();
        let since = Instant::now();
        self.ends(
            &pod,
            PEER_LOST_CODE,
            "all-gather on rank 0 of 2: connection closed by peer",
        )
        .await?;
        self.back("rank lost its peer (exit code 44)", since, 8, 1).await?;
        assert!(attempts(&self.seen().await?).avoid_nodes.is_empty());
        Ok(())
    }

    /// After the second failure in a row, a pause of 5 s.
    async fn a_rank_fails_again(&mut self) -> Result<()> {
        let pod = self.rank(8, 1).await?.name_any();
        let since = Instant::now();
        self.ends(&pod, 1, "allocating 40 GiB").await?;
        self.told("attempt 9 begins in").await?;
        self.back("rank fails, the second time (pause of 5 s)", since, 9, 2)
            .await
    }

    async fn the_limit_is_used_up(&mut self) -> Result<()> {
        let pod = self.rank(9, 1).await?.name_any();
        self.ends(&pod, 1, "step 5\nallocating 80 GiB").await?;
        let run = until(PATIENCE, "the run to fail", async || {
            let run = self.seen().await?;
            let failed = run.status.as_ref().and_then(|status| status.phase) == Some(Phase::Failed);
            Ok(if failed {
                Ok(run)
            } else {
                Err(format!("{:?}", run.status))
            })
        })
        .await?;
        let known = attempts(&run);
        assert_eq!((known.current, known.consecutive_failures), (9, LIMIT));
        let conditions = run.status.unwrap_or_default().conditions;
        let failed = conditions.iter().find(|condition| condition.type_ == "Failed").unwrap();
        assert_eq!(
            (failed.status.as_str(), failed.reason.as_str()),
            ("True", "TrainerFailed")
        );
        for words in ["3 failures in a row", &pod, "exit code 1", "allocating 80 GiB"] {
            assert!(failed.message.contains(words), "{words}: {}", failed.message);
        }
        println!("{}", failed.message);
        until(PATIENCE, "its GPUs to be free", async || {
            let held: Vec<String> = self
                .all_ranks()
                .await?
                .iter()
                .filter(|pod| holds(pod))
                .map(ResourceExt::name_any)
                .collect();
            Ok(held.is_empty().then_some(()).ok_or_else(|| format!("{held:?}")))
        })
        .await
    }
}
