//! The learning rate over a run's steps: a linear warmup from 0, then constant, or a linear or half-cosine decay to a
//! share (SGDR, arXiv 1608.03983, without its restarts; the shapes are those of transformers' `get_scheduler`).

use grpo_crds::algorithm::{Algorithm, Decay, Schedule};

/// The rate of step `step`, counted from 1, of a run of `steps`. Steps after the last one, as in a run whose length was
/// changed, have the last step's rate.
pub fn rate(algorithm: &Algorithm, step: u32, steps: u32) -> f64 {
    let share = f64::from(steps) * algorithm.schedule.warmup_ratio;
    let schedule = Schedule {
        warmup_steps: algorithm.schedule.warmup_steps.max(share as u32),
        ..algorithm.schedule.clone()
    };
    let before = schedule.warmup_steps + 1;
    // The first step after the warmup has the full rate, the last step its share of it.
    let progress = f64::from(step.saturating_sub(before)) / f64::from(steps.saturating_sub(before).max(1));
    rate_at(algorithm.learning_rate, &schedule, step, progress)
}

/// Like [`rate`], for an unknown number of steps: `progress` goes from 0 to 1. `whole` is the rate after the warmup.
pub fn rate_at(whole: f64, schedule: &Schedule, step: u32, progress: f64) -> f64 {
    let warmup = schedule.warmup_steps;
    if step <= warmup {
        return whole * f64::from(step) / f64::from(warmup + 1);
    }
    let progress = progress.min(1.0);
    let share = |falling: f64| schedule.final_ratio + (1.0 - schedule.final_ratio) * falling;
    whole
        * match schedule.decay {
            Decay::Constant => 1.0,
            Decay::Linear => share(1.0 - progress),
            Decay::Cosine => share(0.5 * (1.0 + (std::f64::consts::PI * progress).cos())),
        }
}

#[cfg(test)]
mod tests;
