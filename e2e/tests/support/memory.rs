//! Memory of a run's trainer and engines, where the cluster's pods are processes of this machine.
//!
//! Counted are anonymous pages of the containers `trainer` and `engine`, in memory and in swap. Pages of files are not:
//! processes share those of programs and libraries, and the system may drop them. Engine agents and the driver are left
//! out, because a colocated run has the same ones as any other run.
//!
//! A container's processes are those in the control group that its runtime names after it.

use super::{Result, Scene};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use std::convert::Infallible;
use std::fmt;
use std::fs;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// Between two looks at the processes.
const LOOK: Duration = Duration::from_millis(50);
/// Looks from one search for processes to the next: a search reads much more than a look.
const SEARCH: u32 = 20;

/// Who holds memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Trainer,
    Engine,
}

impl Side {
    /// The label `grpo.dev/role` of its pods, and the name of its container in them.
    fn name(self) -> &'static str {
        match self {
            Self::Trainer => "trainer",
            Self::Engine => "engine",
        }
    }
}

/// Most bytes that the processes of a run held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// All ranks of the trainer, at one moment.
    pub trainer: u64,
    /// All engines, at one moment.
    pub engine: u64,
    /// Both, at one moment.
    pub together: u64,
}

impl Peaks {
    fn see(&mut self, trainer: u64, engine: u64) {
        self.trainer = self.trainer.max(trainer);
        self.engine = self.engine.max(engine);
        self.together = self.together.max(trainer + engine);
    }

    /// Whether processes of both sides were seen. None are where nodes are virtual machines.
    pub fn are_complete(&self) -> bool {
        self.trainer > 0 && self.engine > 0
    }

    /// The larger side alone, in bytes.
    pub fn larger(&self) -> f64 {
        self.trainer.max(self.engine) as f64
    }
}

/// `trainer 700.0 MiB, engine 230.5 MiB, together 910.2 MiB`.
impl fmt::Display for Peaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [trainer, engine, together] = [self.trainer, self.engine, self.together].map(mib);
        write!(
            f,
            "trainer {trainer:.1} MiB, engine {engine:.1} MiB, together {together:.1} MiB"
        )
    }
}

/// Bytes in MiB.
pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1u32 << 20)
}

impl Scene {
    /// Looks at the processes of a run's trainer and engines, for as long as it is polled.
    pub async fn watch_memory(&self, run: &str, peaks: &mut Peaks) -> Result<Infallible> {
        let pods = self.pods();
        let labels = format!("grpo.dev/run={run},grpo.dev/role in (trainer,engine)");
        let of_run = ListParams::default().labels(&labels);
        let mut looks = tokio::time::interval(LOOK);
        // A late look must not be followed by a burst of them.
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut processes: Vec<(Side, u32)> = Vec::new();
        let mut look: u32 = 0;
        loop {
            looks.tick().await;
            if look == 0 {
                let there = pods.list(&of_run).await?;
                let containers: Vec<(Side, String)> = there.iter().filter_map(container_of).collect();
                processes = processes_in(&containers);
            }
            look = (look + 1) % SEARCH;
            let held = |side: Side| {
                let pids = processes.iter().filter(|(whose, _)| *whose == side);
                pids.map(|(_, pid)| held_by(*pid)).sum::<u64>()
            };
            peaks.see(held(Side::Trainer), held(Side::Engine));
        }
    }
}

/// The runtime's id of a pod's container that trains or samples, once it has begun.
fn container_of(pod: &Pod) -> Option<(Side, String)> {
    let role = pod.labels().get("grpo.dev/role")?;
    let side = [Side::Trainer, Side::Engine]
        .into_iter()
        .find(|side| side.name() == role)?;
    let mut statuses = pod.status.as_ref()?.container_statuses.as_ref()?.iter();
    let status = statuses.find(|status| status.name == side.name())?;
    let id = status.container_id.as_ref()?.rsplit('/').next()?;
    (!id.is_empty()).then(|| (side, id.to_owned()))
}

/// The processes of this machine that are in these containers.
fn processes_in(containers: &[(Side, String)]) -> Vec<(Side, u32)> {
    if containers.is_empty() {
        return Vec::new();
    }
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    pids.filter_map(|pid| {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let (side, _) = containers.iter().find(|(_, id)| groups.contains(id.as_str()))?;
        Some((*side, pid))
    })
    .collect()
}

/// Anonymous memory of a process in bytes; nothing once it has ended.
fn held_by(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    anonymous(&status).unwrap_or_default()
}

/// The same from `/proc/PID/status`, which has no memory for a process that has ended.
fn anonymous(status: &str) -> Option<u64> {
    let kib = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name))?;
        value.split_whitespace().next()?.parse::<u64>().ok()
    };
    Some((kib("RssAnon:")? + kib("VmSwap:")?) << 10)
}

#[cfg(test)]
mod tests;
