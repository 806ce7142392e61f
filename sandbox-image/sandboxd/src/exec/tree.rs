//! Finds all processes that a command has started, however they hide, in /proc, and kills them until none is left.
//!
//! A process belongs to a command if it descends from it, is in its Unix process group or session, or carries its id in
//! the environment (which survives a daemon's double fork). A daemon that removed or forged its environment belongs to
//! the command that has run alone since before the daemon began.
//!
//! The workload controls the number of processes and the size of their environments, so the search runs on its own
//! thread and for a bounded time. If it does not finish, every process of the sandbox is killed.

use std::{
    cmp::Ordering,
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::{self, Read as _, Write as _},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, getpid},
};
use tokio::time::Instant;

use crate::{bounds, offload, stat::stat_of};

/// Environment variable with the id of the command that started a process.
pub const EXEC_ENV: &str = "GRPO_EXEC_ID";

/// How long survivors are searched for, and the pause between two searches.
const KILLED_WITHIN: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);
/// Maximum bytes that are read of an environment. sandboxd puts its own variable there, and few others.
const ENVIRONMENT: u64 = 64 << 10;
/// More processes than begin within one tick, and at most half of the pids that a kernel gives out (32,768 or more).
const PIDS_IN_A_TICK: i32 = 1 << 14;

/// A command whose processes are searched for.
#[derive(Clone, Debug)]
pub struct Target {
    pub id: String,
    pub pid: i32,
    /// Start time of its first process, in the kernel's ticks.
    pub began: u64,
    /// No other command has run at the same time.
    pub alone: bool,
}

impl Target {
    /// The processes that an ended command left running. Its pid may belong to another process by now.
    pub fn left_by(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            pid: -1,
            began: u64::MAX,
            alone: false,
        }
    }
}

/// One process, as /proc shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
    session: i32,
    began: u64,
    /// Dead, but not reaped.
    zombie: bool,
    /// Value of [`EXEC_ENV`].
    exec: Option<String>,
}

/// A process's start time, in the kernel's ticks.
pub fn began(pid: i32) -> u64 {
    let stat = stat_of(&pid.to_string());
    stat.and_then(|stat| parse(pid, &stat, &[]))
        .map_or(0, |process| process.began)
}

/// Kills all processes of the command. If that takes too long, kills every process.
pub async fn kill_all_of(target: &Target) {
    let (myself, target) = (getpid().as_raw(), target.clone());
    if !kill_until_none(move |all| belonging(&target, myself, all)).await {
        bounds::kill_at_once();
    }
}

/// Kills all descendants of this process. False if some are left.
pub async fn kill_everything() -> bool {
    let myself = getpid().as_raw();
    bounds::kill_at_once();
    let all_dead = kill_until_none(move |all| descendants(HashSet::from([myself]), all)).await;
    if !all_dead {
        let _ = writeln!(io::stderr(), "sandboxd: some processes do not die");
    }
    all_dead
}

/// False if some are left at the deadline.
async fn kill_until_none(find: impl Fn(&[Process]) -> HashSet<i32> + Clone + Send + 'static) -> bool {
    let until = Instant::now() + KILLED_WITHIN;
    loop {
        let find = find.clone();
        let left = until.saturating_duration_since(Instant::now());
        match offload::run(left, move || kill_once(find)).await {
            Ok(true) => return true,
            Ok(false) if Instant::now() < until => tokio::time::sleep(PAUSE).await,
            Ok(false) | Err(_) => return false,
        }
    }
}

/// Kills the processes that are found now. True if there was none.
fn kill_once(find: impl Fn(&[Process]) -> HashSet<i32>) -> bool {
    let myself = getpid().as_raw();
    let all = every_process();
    let zombies: HashSet<i32> = all.iter().filter(|process| process.zombie).map(|p| p.pid).collect();
    let mut left = find(&all);
    left.retain(|pid| *pid != myself && !zombies.contains(pid));
    // All are stopped first: a shell whose child was killed before it would continue with its next command. A process
    // that is gone by now counts as killed.
    for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
        for pid in &left {
            let _ = kill(Pid::from_raw(*pid), signal);
        }
    }
    left.is_empty()
}

fn belonging(target: &Target, myself: i32, all: &[Process]) -> HashSet<i32> {
    // Another sandboxd on this host has commands with the same ids.
    let own = descendants(HashSet::from([myself]), all);
    let roots = all
        .iter()
        .filter(|process| own.contains(&process.pid))
        .filter(|process| {
            let is_first = process.pid == target.pid && process.began == target.began;
            let is_beside =
                process.began >= target.began && (process.group == target.pid || process.session == target.pid);
            let is_marked = process.exec.as_deref() == Some(target.id.as_str());
            // A process may forge its environment.
            let is_hidden = target.alone && process.parent == myself && is_later(process, target);
            is_first || is_beside || is_marked || is_hidden
        });
    descendants(
        roots.map(|process| process.pid).filter(|pid| *pid != myself).collect(),
        all,
    )
}

/// Whether the process began after the command. Start times are equal within one tick of the kernel (10 ms); pids
/// decide then. They rise, and begin anew after the highest one, so a pid that is far below was given out later.
fn is_later(process: &Process, target: &Target) -> bool {
    match process.began.cmp(&target.began) {
        Ordering::Less => false,
        Ordering::Equal => {
            let ahead = process.pid - target.pid;
            (1..PIDS_IN_A_TICK).contains(&ahead) || ahead <= -PIDS_IN_A_TICK
        }
        Ordering::Greater => true,
    }
}

/// The roots and all their descendants.
fn descendants(roots: HashSet<i32>, all: &[Process]) -> HashSet<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for process in all {
        children.entry(process.parent).or_default().push(process.pid);
    }
    let mut found = HashSet::new();
    let mut next: Vec<i32> = roots.into_iter().collect();
    while let Some(pid) = next.pop() {
        if found.insert(pid) {
            next.extend(children.get(&pid).into_iter().flatten());
        }
    }
    found
}

fn every_process() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(read).collect()
}

fn read(pid: i32) -> Option<Process> {
    let stat = stat_of(&pid.to_string())?;
    let mut environment = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/environ")) {
        let _ = file.take(ENVIRONMENT).read_to_end(&mut environment);
    }
    parse(pid, &stat, &environment)
}

/// `pid (name) state parent group session …`. The name may contain any character, so parsing begins after its last
/// bracket.
fn parse(pid: i32, stat: &str, environment: &[u8]) -> Option<Process> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse().ok();
    let exec = environment.split(|byte| *byte == 0).find_map(|variable| {
        let value = variable.strip_prefix(EXEC_ENV.as_bytes())?.strip_prefix(b"=")?;
        Some(String::from_utf8_lossy(value).into_owned())
    });
    // After its first thread has ended, a process looks dead while its other threads run.
    let threads: u32 = fields.get(17)?.parse().ok()?;
    Some(Process {
        pid,
        parent: number(1)?,
        group: number(2)?,
        session: number(3)?,
        began: fields.get(19)?.parse().ok()?,
        zombie: matches!(*fields.first()?, "Z" | "X") && threads <= 1,
        exec,
    })
}

#[cfg(test)]
mod tests;
