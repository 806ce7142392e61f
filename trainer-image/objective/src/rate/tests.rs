use super::*;

fn rates(decay: Decay, warmup_steps: u32, steps: u32) -> Vec<f64> {
    let algorithm = Algorithm {
        learning_rate: 2.0,
        schedule: Schedule {
            decay,
            warmup_steps,
            final_ratio: 0.5,
            ..Default::default()
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
        ..Default::default()
    };
    let seen = [(1, 0.0), (2, 0.0), (3, 0.5), (4, 1.0), (5, 1.2)];
    let found = seen.map(|(step, progress)| rate_at(2.0, &schedule, step, progress));
    near(&found, &[1.0, 2.0, 1.5, 1.0, 1.0]);
}

#[test]
fn a_warmup_by_share_is_that_many_of_the_runs_steps() {
    let with = |warmup_steps, warmup_ratio| {
        let algorithm = Algorithm {
            learning_rate: 2.0,
            schedule: Schedule {
                warmup_steps,
                warmup_ratio,
                ..Default::default()
            },
            ..Default::default()
        };
        [1, 2, 3, 4].map(|step| rate(&algorithm, step, 39))
    };
    near(&with(0, 0.1), &with(3, 0.0));
    near(&with(4, 0.1), &with(4, 0.0));
    near(&with(0, 0.0), &[2.0; 4]);
}
