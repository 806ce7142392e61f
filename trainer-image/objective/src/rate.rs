//! The learning rate over a run's steps: up from 0 in a line, then constant, or down to a share in a line or half a
//! cosine (SGDR, arXiv 1608.03983, without its restarts; the shapes are those of transformers' `get_scheduler`).

use grpo_crds::algorithm::{Algorithm, Decay, Schedule};

/// The rate of step `step`, counted from 1, of a run of `steps`. A step after the last has the last one's rate, as has
/// a run that is made longer while it is there.
pub fn rate(algorithm: &Algorithm, step: u32, steps: u32) -> f64 {
    let before = algorithm.schedule.warmup_steps + 1;
    // The first step after the warmup has the whole rate, the last one its share.
    let progress = f64::from(step.saturating_sub(before)) / f64::from(steps.saturating_sub(before).max(1));
    rate_at(algorithm.learning_rate, &algorithm.schedule, step, progress)
}

/// The same where it is known how far the run is at that step, `progress` from 0 to 1, but not of how many steps it is.
/// `whole` is the rate after the warmup.
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
mod tests {
    use super::*;

    fn rates(decay: Decay, warmup_steps: u32, steps: u32) -> Vec<f64> {
        let algorithm = Algorithm {
            learning_rate: 2.0,
            schedule: Schedule {
                decay,
                warmup_steps,
                final_ratio: 0.5,
            },
            ..Default::default()
        };
        (1..=steps).map(|step| rate(&algorithm, step, steps)).collect()
    }

    fn near(found: &[f64], wanted: &[f64]) {
        let apart = found.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(found.len() == wanted.len() && apart < 1e-12, "{found:?}");
    }

    #[test]
    fn the_rate_rises_in_a_line_then_stays_or_falls_to_its_share() {
        near(&rates(Decay::Constant, 3, 6), &[0.5, 1.0, 1.5, 2.0, 2.0, 2.0]);
        near(&rates(Decay::Linear, 0, 5), &[2.0, 1.75, 1.5, 1.25, 1.0]);
        near(&rates(Decay::Cosine, 1, 4), &[1.0, 2.0, 1.5, 1.0]);
    }

    #[test]
    fn a_run_of_one_step_or_all_warmup_or_grown_has_a_finite_rate() {
        near(&rates(Decay::Cosine, 0, 1), &[2.0]);
        near(&rates(Decay::Linear, 2, 2), &[2.0 / 3.0, 4.0 / 3.0]);
        let algorithm = Algorithm {
            schedule: Schedule {
                decay: Decay::Linear,
                ..Default::default()
            },
            ..Default::default()
        };
        assert_eq!(rate(&algorithm, 9, 5), 0.0);
    }

    #[test]
    fn a_run_that_counts_tokens_warms_up_by_steps_and_falls_by_what_it_has_seen() {
        let schedule = Schedule {
            decay: Decay::Cosine,
            warmup_steps: 1,
            final_ratio: 0.5,
        };
        let seen = [(1, 0.0), (2, 0.0), (3, 0.5), (4, 1.0), (5, 1.2)];
        let found = seen.map(|(step, progress)| rate_at(2.0, &schedule, step, progress));
        near(&found, &[1.0, 2.0, 1.5, 1.0, 1.0]);
    }
}
