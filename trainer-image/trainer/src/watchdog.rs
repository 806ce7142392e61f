//! Ends a rank that waits too long for others, and names the late ranks.
//!
//! A separate thread checks whether the current collective or step is past its deadline. It then compares the progress
//! that the ranks report: a rank that is behind, and does not report that it is busy, hangs. The verdict goes to the
//! other ranks and into the termination message. The operator reads it there, restarts all ranks, and avoids the node
//! of the rank that hung.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use grpo_contracts::exit::{HUNG_CODE, Hang};
use grpo_native::{Doing, Position, Unanswered, Watch, end_now};

/// Interval between checks.
const LOOK: Duration = Duration::from_millis(200);
/// Deadline for an answer of rank 0's store.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for a rank that reports itself busy, unless the collective's deadline is longer.
const BUSY: Duration = Duration::from_secs(1800);
/// Delay before rank 0 ends: it keeps the store with the verdict, so it ends last.
const LAST: Duration = Duration::from_secs(3);

/// Deadlines, and the file for the termination message.
#[derive(Clone, Debug)]
pub struct Limits {
    pub collective: Duration,
    pub step: Option<Duration>,
    /// Ranks of one pod.
    pub per_pod: u32,
    pub termination_log: PathBuf,
}

impl Limits {
    /// Deadline after which NCCL ends the process in a collective of GPUs: longer than the watchdog's longest wait,
    /// because NCCL cannot name the late rank. It is for a rank whose watchdog sees no wait: its calls to the GPU do
    /// not return.
    pub fn gpu_collective(&self) -> Duration {
        self.collective.max(BUSY) + self.collective
    }
}

/// Work past its deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Overdue {
    /// Such as `all-gather`; `None` for the step as a whole.
    collective: Option<&'static str>,
    step: Option<u32>,
    waited: Duration,
}

/// Watches until the process ends.
pub fn start(watch: Watch, limits: Limits) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(LOOK);
            if let Some(hang) = look(&watch, &limits) {
                end(&watch, &limits, &hang);
            }
        }
    });
}

fn look(watch: &Watch, limits: &Limits) -> Option<Hang> {
    let overdue = overdue(&watch.doing(), limits, Instant::now())?;
    let positions = watch.positions(PATIENCE);
    let excused = overdue.waited < BUSY.max(limits.collective)
        && match &positions {
            Ok(all) => only_busy_ones_are_late(all),
            // Rank 0 has ended: the collective itself will fail.
            Err(Unanswered::Gone(_)) => true,
            Err(Unanswered::Silent(_)) => false,
        };
    (!excused).then(|| verdict(&overdue, watch.rank(), positions, limits.per_pod))
}

fn overdue(doing: &Doing, limits: &Limits, now: Instant) -> Option<Overdue> {
    let past = |since: Instant, limit: Duration| Some(now.duration_since(since)).filter(|waited| *waited >= limit);
    let step = doing.step.map(|(step, _)| step);
    let in_collective = doing.collective.and_then(|(name, since)| {
        Some(Overdue {
            collective: Some(name),
            step,
            waited: past(since, limits.collective)?,
        })
    });
    in_collective.or_else(|| {
        let (step, since) = doing.step?;
        Some(Overdue {
            collective: doing.collective.map(|(name, _)| name),
            step: Some(step),
            waited: past(since, limits.step?)?,
        })
    })
}

/// Ranks that never arrived, and among the others those furthest behind. A rank in between may itself wait for the last
/// one: a broadcast's root waits for the last receiver while another receiver has long continued.
fn late(positions: &[Option<Position>]) -> Vec<u32> {
    let numbers = || positions.iter().flatten().map(|at| (at.number, at.within));
    let (last, foremost) = (numbers().min(), numbers().max());
    let is_late = |at: &Option<Position>| match at {
        None => true,
        Some(at) => Some((at.number, at.within)) == last && last != foremost,
    };
    (0..)
        .zip(positions)
        .filter(|(_, at)| is_late(at))
        .map(|(rank, _)| rank)
        .collect()
}

fn only_busy_ones_are_late(positions: &[Option<Position>]) -> bool {
    let late = late(positions);
    let busy = |rank: &u32| positions[*rank as usize].as_ref().is_some_and(|at| at.busy);
    !late.is_empty() && late.iter().all(busy)
}

fn verdict(overdue: &Overdue, rank: u32, positions: Result<Vec<Option<Position>>, Unanswered>, per_pod: u32) -> Hang {
    let step = overdue.step.map(|step| format!(" of step {step}")).unwrap_or_default();
    let seconds = overdue.waited.as_secs();
    let waited = match overdue.collective {
        Some(collective) => format!("rank {rank} waited {seconds} s in {collective}{step}"),
        None => format!("rank {rank} has worked for {seconds} s{}", step.replace(" of", " on")),
    };
    let (ranks, why) = match positions {
        Err(error) => (
            if rank == 0 { Vec::new() } else { vec![0] },
            format!("rank 0, the rendezvous, does not answer ({error})"),
        ),
        Ok(positions) => {
            let late = late(&positions);
            let why = match late.as_slice() {
                [] => "no rank is behind the others: the network between them is at fault, or the deadline in spec.trainer.deadlines is too short"
                    .to_owned(),
                late => late
                    .iter()
                    .map(|rank| in_words(*rank, positions[*rank as usize].as_ref()))
                    .collect::<Vec<_>>()
                    .join(", "),
            };
            (late, why)
        }
    };
    let mut pods: Vec<u32> = ranks.iter().map(|rank| rank / per_pod.max(1)).collect();
    pods.dedup();
    Hang {
        message: format!("{waited}: {why}"),
        ranks,
        pods,
    }
}

fn in_words(rank: u32, at: Option<&Position>) -> String {
    match at {
        None => format!("rank {rank} never came"),
        Some(at) if at.busy => format!("rank {rank} did not arrive (busy with {})", at.doing),
        Some(at) if at.doing.is_empty() => format!("rank {rank} did not arrive"),
        Some(at) => format!(
            "rank {rank} did not arrive (last seen at {}, its number {})",
            at.doing, at.number
        ),
    }
}

/// Writes the verdict for the operator and the other ranks, and ends the process.
fn end(watch: &Watch, limits: &Limits, hang: &Hang) -> ! {
    tracing::error!(ranks = ?hang.ranks, "{}", hang.message);
    write_last_word(&limits.termination_log, hang);
    // A living rank whose connections close reads the reason there.
    if let Ok(word) = serde_json::to_string(hang)
        && let Err(error) = watch.announce_termination(&word, PATIENCE)
    {
        tracing::warn!(%error, "could not tell the other ranks");
    }
    if watch.rank() == 0 {
        std::thread::sleep(LAST);
    }
    end_now(HUNG_CODE)
}

/// The verdict of another rank, for a rank whose connections closed.
pub fn verdict_of_others(watch: &Watch) -> Option<Hang> {
    let word = watch.terminated(PATIENCE).ok()??;
    serde_json::from_str(&word).ok()
}

/// Writes the verdict for the kubelet, which takes at most 4 KiB. The ranks of a pod share the file: the first verdict
/// stays.
pub fn write_last_word(file: &Path, hang: &Hang) {
    let short = Hang {
        message: hang.message.chars().take(1000).collect(),
        ranks: hang.ranks.iter().copied().take(64).collect(),
        pods: hang.pods.iter().copied().take(64).collect(),
    };
    let word = serde_json::to_vec(&short).unwrap_or_default();
    let written = || {
        let mut open = File::options().create(true).append(true).open(file)?;
        // The lock holds until the file is closed, at the latest by the end of the process.
        open.lock()?;
        match open.metadata()?.len() {
            0 => open.write_all(&word),
            _ => Ok(()),
        }
    };
    if let Err(error) = written() {
        tracing::warn!(%error, file = %file.display(), "writing the termination message");
    }
}

#[cfg(test)]
mod tests;
