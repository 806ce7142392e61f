//! pass@k of a set: the chance that one of k samples of a task is resolved, with a 95 % interval.
//!
//! For a task with `n` samples, `c` of them resolved, the unbiased estimate is 1 - C(n - c, k) / C(n, k) (Codex, arXiv
//! 2107.03374, eq. 1). A set's estimate is the mean over its tasks. Samples of one task are not independent, so the
//! interval is that of a mean over tasks: 1.96 standard errors, with the deviation over tasks (Miller, arXiv
//! 2411.00640). If all tasks have the same estimate, that interval would be empty; then it is Wilson's for this number
//! of tasks.

use serde_json::{Value, json};

/// 97.5 % of a normal distribution lie below this value.
const Z: f64 = 1.959_963_984_540_054;

/// The verdicts of one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    pub judged: u32,
    pub resolved: u32,
}

/// An estimate for a set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassAt {
    pub k: u32,
    pub rate: f64,
    pub low: f64,
    pub high: f64,
    /// Tasks with at least k verdicts: the others do not count.
    pub tasks: usize,
}

impl PassAt {
    /// `None` if no task has that many verdicts.
    pub fn of(tasks: &[Samples], k: u32) -> Option<Self> {
        let rates = tasks.iter().filter(|task| k > 0 && task.judged >= k);
        let rates: Vec<f64> = rates.map(|task| of_task(*task, k)).collect();
        if rates.is_empty() {
            return None;
        }
        let n = rates.len() as f64;
        let rate = rates.iter().sum::<f64>() / n;
        let squares: f64 = rates.iter().map(|one| (one - rate).powi(2)).sum();
        // Not by `squares`, which rounding makes larger than zero.
        let (low, high) = match rates.iter().all(|one| *one == rates[0]) {
            true => wilson(rate, n),
            false => {
                let error = (squares / (n - 1.0) / n).sqrt();
                (rate - Z * error, rate + Z * error)
            }
        };
        Some(Self {
            k,
            rate,
            low: low.max(0.0),
            high: high.min(1.0),
            tasks: rates.len(),
        })
    }

    /// For each power of two, and for the largest number of samples of a task.
    pub fn all(tasks: &[Samples]) -> Vec<Self> {
        let most = tasks.iter().map(|task| task.judged).max().unwrap_or(0);
        let mut ks: Vec<u32> = (0..32).map(|power| 1 << power).take_while(|k| *k <= most).collect();
        if !ks.contains(&most) {
            ks.push(most);
        }
        ks.into_iter().filter_map(|k| Self::of(tasks, k)).collect()
    }

    pub fn in_words(&self) -> String {
        let percent = |rate: f64| format!("{:.1}", 100.0 * rate);
        format!(
            "pass@{} {} % (95 %: {} to {}) of {} tasks",
            self.k,
            percent(self.rate),
            percent(self.low),
            percent(self.high),
            self.tasks
        )
    }

    pub fn json(&self) -> Value {
        json!({
            "k": self.k,
            "rate": self.rate,
            "interval95": [self.low, self.high],
            "tasks": self.tasks,
        })
    }
}

/// The estimate of one task, as a product: binomials of many samples are too large.
fn of_task(task: Samples, k: u32) -> f64 {
    let unresolved = task.judged - task.resolved.min(task.judged);
    if unresolved < k {
        return 1.0;
    }
    let missed = (unresolved + 1..=task.judged).map(|of| 1.0 - f64::from(k) / f64::from(of));
    1.0 - missed.product::<f64>()
}

/// The interval of a share of `n` (Wilson 1927), within 0 and 1; without samples, all of it.
pub(crate) fn wilson(rate: f64, n: f64) -> (f64, f64) {
    if n <= 0.0 {
        return (0.0, 1.0);
    }
    let square = Z * Z / n;
    let middle = (rate + square / 2.0) / (1.0 + square);
    let half = Z / (1.0 + square) * (rate * (1.0 - rate) / n + square / (4.0 * n)).sqrt();
    ((middle - half).max(0.0), (middle + half).min(1.0))
}

#[cfg(test)]
mod tests;
