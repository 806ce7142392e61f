//! Pods of several ranks, started as the operator does: one process per pod, which starts the ranks. On the CPU, where
//! several ranks can compute too.

use std::collections::BTreeMap;
use std::process::Command;

use crate::common::process::{Attempt, Run, until};
use grpo_contracts::exit::{HUNG_CODE, Hang, PEER_LOST_CODE};

/// The processes that this one started, by their `RANK`.
fn ranks_of(launcher: u32) -> BTreeMap<u32, u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let rank = |process: &u32| {
        let environment = std::fs::read(format!("/proc/{process}/environ")).ok()?;
        let mut variables = environment.split(|byte| *byte == 0);
        let found = variables.find_map(|one| one.strip_prefix(b"RANK="))?;
        std::str::from_utf8(found).unwrap().parse().ok()
    };
    numbers
        .filter(|process| state_and_parent(*process).is_some_and(|(_, parent)| parent == launcher))
        .filter_map(|process| Some((rank(&process)?, process)))
        .collect()
}

fn state_and_parent(process: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// A zombie has ended too: it only waits until this machine's first process reaps it.
fn is_gone(process: &u32) -> bool {
    state_and_parent(*process).is_none_or(|(state, _)| state == 'Z')
}

fn signal(process: u32, signal: &str) {
    let process = process.to_string();
    assert!(
        Command::new("kill")
            .args([signal, &process])
            .status()
            .unwrap()
            .success()
    );
}

/// Starts `pods` pods of `each` ranks until they take orders; returns them with the ranks' processes.
fn started(run: &Run, pods: u32, each: u32) -> (Attempt, BTreeMap<u32, u32>) {
    let mut attempt = Attempt::begin_pods(run, 1, pods, 0..pods, each);
    attempt.wait_for_orders();
    let ranks: BTreeMap<u32, u32> = attempt.ranks.iter().flat_map(|pod| ranks_of(pod.id())).collect();
    assert_eq!(
        ranks.keys().copied().collect::<Vec<_>>(),
        (0..pods * each).collect::<Vec<_>>()
    );
    (attempt, ranks)
}

fn says(attempt: &Attempt, words: &str) -> bool {
    attempt.said.lock().unwrap().iter().any(|line| line.contains(words))
}

#[test]
fn a_pod_of_two_ranks_steps_as_two_pods_of_one_with_the_same_bits() {
    let (one_by_one, together) = (Run::new(2), Run::new(2));
    let apart = Attempt::start(&one_by_one, 1, 2);
    let (pod, _) = started(&together, 1, 2);
    assert_eq!(pod.state().world_size, 2);
    assert_eq!(pod.ask("GET", "/readyz", "").0, 200);
    for step in 1..=3 {
        let wanted = apart.step(&one_by_one, step).metrics.unwrap();
        let found = pod.step(&together, step).metrics.unwrap();
        assert_eq!(found.loss.to_bits(), wanted.loss.to_bits(), "step {step}");
        assert_eq!(found.tensors_sha256, wanted.tensors_sha256, "step {step}");
    }
    for rank in ["rank 0: ", "rank 1: "] {
        let lines = pod.said.lock().unwrap();
        assert!(lines.iter().any(|line| line.starts_with(rank)), "{rank}");
    }
}

#[test]
fn ranks_of_a_pod_share_a_sequence_and_have_the_state_between_them() {
    let spec =
        serde_json::json!({"trainer": {"sequenceParallel": 2, "shard": "Node", "deadlines": {"collective": "60s"}}});
    let (shared, whole) = (Run::with(2, spec), Run::new(2));
    let wanted = Attempt::start(&whole, 1, 1).step(&whole, 1).metrics.unwrap();
    let (pods, _) = started(&shared, 2, 2);
    let found = pods.step(&shared, 1).metrics.unwrap();
    let near = |found: f64, wanted: f64| (found - wanted).abs() <= 1e-5 * wanted.abs().max(1.0);
    assert!(
        near(found.loss, wanted.loss) && near(found.gradient_norm, wanted.gradient_norm),
        "{found:?} {wanted:?}"
    );
}

#[test]
fn a_rank_that_is_killed_is_the_reason_why_its_pod_ends_and_no_rank_stays() {
    let run = Run::new(50);
    let (mut attempt, ranks) = started(&run, 2, 2);
    attempt.step(&run, 1);
    signal(ranks[&3], "-9");
    assert_eq!(attempt.ranks[1].wait().unwrap().code(), Some(137));
    assert_eq!(attempt.ranks[0].wait().unwrap().code(), Some(PEER_LOST_CODE));
    assert!(ranks.values().all(is_gone), "{ranks:?}");
    until(|| says(&attempt, "rank 3 ended first (signal: 9 (SIGKILL)"));
    assert!(std::fs::read_dir(&attempt.last_words).unwrap().next().is_none());
}

/// Simulates NCCL, which aborts a rank whose collective is past its deadline.
#[test]
fn a_rank_that_nccl_aborts_ends_its_pod_as_one_that_lost_a_peer_and_is_named() {
    let run = Run::new(50);
    let (mut attempt, ranks) = started(&run, 2, 2);
    attempt.step(&run, 1);
    signal(ranks[&3], "-ABRT");
    for pod in [1, 0] {
        assert_eq!(attempt.ranks[pod].wait().unwrap().code(), Some(PEER_LOST_CODE));
    }
    assert!(ranks.values().all(is_gone), "{ranks:?}");
    until(|| says(&attempt, "rank 3 ended first (signal: 6 (SIGABRT)"));
}

#[test]
fn ranks_end_with_the_process_that_started_them() {
    let run = Run::new(50);
    let (mut attempt, ranks) = started(&run, 2, 2);
    attempt.ranks[1].kill().unwrap();
    attempt.ranks[1].wait().unwrap();
    until(|| [2, 3].iter().all(|rank| is_gone(&ranks[rank])));
    assert_eq!(attempt.ranks[0].wait().unwrap().code(), Some(PEER_LOST_CODE));
    assert!(ranks.values().all(is_gone), "{ranks:?}");
}

#[test]
fn a_rank_that_hangs_is_named_in_one_whole_word_and_ended_with_the_others() {
    let run = Run::with_deadline(50, "6s");
    let (mut attempt, ranks) = started(&run, 1, 3);
    signal(ranks[&1], "-STOP");
    assert_eq!(attempt.ranks[0].wait().unwrap().code(), Some(HUNG_CODE));
    assert!(ranks.values().all(is_gone), "{ranks:?}");
    let hang: Hang = serde_json::from_slice(&std::fs::read(attempt.last_words.join("0")).unwrap()).unwrap();
    assert_eq!((hang.ranks, hang.pods), (vec![1], vec![0]));
}

#[test]
fn a_pod_that_is_told_to_end_ends_with_all_its_ranks() {
    let run = Run::new(50);
    let (mut attempt, ranks) = started(&run, 1, 2);
    attempt.signal(0, "-TERM");
    assert_eq!(attempt.ranks[0].wait().unwrap().code(), Some(143));
    assert!(ranks.values().all(is_gone), "{ranks:?}");
}

#[test]
fn gpus_for_a_trainer_of_the_cpu_end_it_in_words_that_say_which_image_to_use() {
    for each in [1, 2] {
        let run = Run::with(2, serde_json::json!({"trainer": {"gpusPerNode": each}}));
        let mut attempt = Attempt::begin_pods(&run, 1, 1, 0..1, each);
        let said = attempt.takes_orders().unwrap_err();
        assert_eq!(attempt.ranks[0].wait().unwrap().code(), Some(1));
        let last = said.lines().last().unwrap();
        for words in [
            &format!("trainer.gpusPerNode is {each}, but GPU"),
            "Dockerfile.cuda",
            "spec.trainer.image",
        ] {
            assert!(last.contains(words), "{said}");
        }
    }
}
