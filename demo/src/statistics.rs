//! Rates over tasks, and their uncertainty: bootstrap intervals over tasks, clustered by function.
//!
//! Samples of one task, and tasks about one function, are not independent. So whole functions are drawn with
//! replacement, the mean over the drawn tasks is computed, and the middle 95 % of many such means is the interval.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Number of draws. With it the interval's ends move by less than a tenth of a point from seed to seed.
pub const DRAWS: usize = 10_000;
const SEED: u64 = 20_261_121;

/// One number with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

impl Estimate {
    /// True if chance alone does not explain a value above 0.
    pub fn is_above_zero(&self) -> bool {
        self.low > 0.0
    }
}

/// One task's samples: how many had a verdict, and how many of those were resolved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    pub resolved: u32,
    pub valid: u32,
}

impl Tally {
    /// `None` if no sample had a verdict: a void says nothing about the policy.
    pub fn rate(&self) -> Option<f64> {
        (self.valid > 0).then(|| f64::from(self.resolved) / f64::from(self.valid))
    }

    /// The unbiased estimate, from all samples, of the chance that at least one of k samples is resolved.
    pub fn pass_at(&self, k: u32) -> Option<f64> {
        if self.valid < k {
            return None;
        }
        let unresolved = self.valid - self.resolved;
        if unresolved < k {
            return Some(1.0);
        }
        let none: f64 = (0..k)
            .map(|i| f64::from(unresolved - i) / f64::from(self.valid - i))
            .product();
        Some(1.0 - none)
    }
}

/// A value per task and the function the task is about.
pub type Clustered<'a> = Vec<(&'a str, f64)>;

/// The mean over tasks and its interval; `None` without tasks.
pub fn estimate(values: &Clustered) -> Option<Estimate> {
    if values.is_empty() {
        return None;
    }
    let mut clusters: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
    for (cluster, value) in values {
        let one = clusters.entry(cluster).or_default();
        one.0 += value;
        one.1 += 1;
    }
    let clusters: Vec<(f64, usize)> = clusters.into_values().collect();
    let mut draws = StdRng::seed_from_u64(SEED);
    let mut means: Vec<f64> = (0..DRAWS)
        .map(|_| {
            let (mut sum, mut tasks) = (0.0, 0);
            for _ in 0..clusters.len() {
                let (s, n) = clusters[draws.random_range(0..clusters.len())];
                sum += s;
                tasks += n;
            }
            sum / tasks as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    let value = values.iter().map(|(_, v)| v).sum::<f64>() / values.len() as f64;
    Some(Estimate {
        value,
        low: quantile(&means, 0.025),
        high: quantile(&means, 0.975),
    })
}

/// Interpolates linearly between the two nearest sorted values.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = q * (sorted.len() - 1) as f64;
    let (below, above) = (at.floor() as usize, at.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * (at - below as f64)
}

#[cfg(test)]
mod tests;
