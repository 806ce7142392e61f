use super::*;
use crate::rendezvous_store::Watch;

fn watch(progress: &Arc<Progress>) -> Watch {
    Watch {
        store: None,
        asked: None,
        progress: progress.clone(),
    }
}

#[test]
fn a_rank_that_reads_from_its_gpu_is_seen_waiting_until_it_has_read() {
    let progress = Arc::<Progress>::default();
    let watch = watch(&progress);
    let seen = || watch.doing().collective.map(|(name, _)| name);
    counts_for(&progress);
    assert_eq!(wait_for(Device::Cuda(0), seen), Some("a wait for its GPU"));
    assert_eq!(seen(), None);
    assert_eq!(wait_for(Device::Cpu, seen), None, "the host's own tensors are there");
}

#[test]
fn a_read_within_a_collective_leaves_the_collective_noted() {
    let progress = Arc::<Progress>::default();
    let watch = watch(&progress);
    let seen = || watch.doing().collective.map(|(name, _)| name);
    counts_for(&progress);
    let after = progress.waiting("all-gather", || {
        wait_for(Device::Cuda(0), || ());
        seen()
    });
    assert_eq!(after, Some("all-gather"));
}

#[test]
fn a_thread_without_other_ranks_waits_for_nobody() {
    std::thread::spawn(|| assert_eq!(wait_for(Device::Cuda(0), || 7), 7))
        .join()
        .unwrap();
}
