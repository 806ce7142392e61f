//! The cost of a long run, by the kernel's counters: processor time and page faults of the driver, processor time of
//! this process, which simulates everything around it, and time that the host took from this machine.
//!
//! If iterations take longer and longer, the difference of two [`Reading`]s tells which of them grow. User time is our
//! code; system time is the store's files and connections; stolen time is neither's.

use super::DriverBenchError;
use super::driver::DriverProcess;
use std::fmt;
use std::time::Instant;

/// Units of processor time in a second.
const TICKS: f64 = 100.0;

/// Counters of a process since its start; times in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ProcessCounters {
    faults: f64,
    user: f64,
    system: f64,
}

impl ProcessCounters {
    /// `stat`: the text of `/proc/<pid>/stat`.
    fn parse(stat: &str) -> Option<Self> {
        // The program's name is in brackets, and may contain anything.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<f64>().ok();
        Some(Self {
            faults: number(7)?,
            user: number(11)? / TICKS,
            system: number(12)? / TICKS,
        })
    }
}

/// Seconds that the host took from all processors together. `stat`: the text of `/proc/stat`.
fn stolen(stat: &str) -> Option<f64> {
    let time: f64 = stat.strip_prefix("cpu ")?.split_whitespace().nth(7)?.parse().ok()?;
    Some(time / TICKS)
}

/// All counters after a number of iterations.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub iterations: usize,
    /// Resident memory of the driver, in bytes.
    pub memory: f64,
    at: Instant,
    driver: ProcessCounters,
    bench: ProcessCounters,
    stolen: f64,
}

impl Reading {
    pub fn after(iterations: usize, driver: &DriverProcess) -> Result<Self, DriverBenchError> {
        let read = |file: String| {
            let text = std::fs::read_to_string(&file);
            text.map_err(DriverBenchError::io(format!("reading {file}")))
        };
        let unknown = || DriverBenchError::Wrong("the kernel's counters have an unknown form".into());
        let process = |process: String| {
            let stat = read(format!("/proc/{process}/stat"))?;
            ProcessCounters::parse(&stat).ok_or_else(unknown)
        };
        Ok(Self {
            iterations,
            memory: driver.memory()?,
            at: Instant::now(),
            driver: process(driver.pid()?.to_string())?,
            bench: process("self".into())?,
            stolen: stolen(&read("/proc/stat".into())?).ok_or_else(unknown)?,
        })
    }

    /// The cost of an iteration from this reading to a later one.
    pub fn until(&self, later: &Self) -> IterationCost {
        let iterations = later.iterations.saturating_sub(self.iterations).max(1) as f64;
        let of = |before: f64, after: f64| (after - before) / iterations;
        let processor = |counters: &ProcessCounters| counters.user + counters.system;
        IterationCost {
            seconds: (later.at - self.at).as_secs_f64() / iterations,
            user: of(self.driver.user, later.driver.user),
            system: of(self.driver.system, later.driver.system),
            faults: of(self.driver.faults, later.driver.faults),
            bench: of(processor(&self.bench), processor(&later.bench)),
            stolen: of(self.stolen, later.stolen),
        }
    }
}

/// The cost of an iteration; all but page faults in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IterationCost {
    seconds: f64,
    user: f64,
    system: f64,
    faults: f64,
    bench: f64,
    stolen: f64,
}

impl IterationCost {
    /// Processor time of the driver.
    pub fn processor(&self) -> f64 {
        self.user + self.system
    }
}

impl fmt::Display for IterationCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [seconds, user, system, bench, stolen] =
            [self.seconds, self.user, self.system, self.bench, self.stolen].map(|seconds| seconds * 1e3);
        write!(
            f,
            "{seconds:.0} ms; driver {user:.0} ms user, {system:.0} ms system, {:.0} page faults; simulation {bench:.0} \
             ms; stolen {stolen:.0} ms",
            self.faults
        )
    }
}

#[cfg(test)]
mod tests;
