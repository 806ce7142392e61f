use super::*;

/// Two trained tokens with the rollout logprob -1.
fn row(old: f64) -> TrainRow {
    TrainRow {
        tokens: vec![1, 2, 3],
        weights: vec![0.0, 1.0, 1.0],
        rollout_logprobs: vec![0.0, -1.0, -1.0],
        old_logprobs: vec![0.0, old, -1.0],
        temperature: 1.0,
        ..Default::default()
    }
}

#[test]
fn the_largest_gap_is_that_of_all_mini_batches_and_a_token_counts_once() {
    let algorithm = Algorithm::default();
    let mut tally = Tally::default();
    // The last one is the first mini-batch of the second epoch.
    for (first, new, old) in [(true, true, -1.25), (false, true, -1.5), (false, false, -9.0)] {
        let rows = [row(old)];
        let losses = Losses {
            algorithm: &algorithm,
            rows: &rows,
            sums: None,
            first,
            new,
        };
        losses.gradient(&MicroBatch::padded(&rows, 0), &[-1.0, -1.0], &[0.0, 0.0], &mut tally);
    }
    let mut metrics = StepMetrics::default();
    tally.tell(&mut metrics, &algorithm, 3, 0);
    assert_eq!((metrics.logprob_gap_max, metrics.logprob_gap_over), (0.5, 2));
}

/// The weights have changed by then, and the old logprobs are not known.
#[test]
fn a_later_mini_batch_has_no_gap_where_its_first_logprobs_were_not_computed() {
    let algorithm = Algorithm::default();
    let mut tally = Tally::default();
    let rows = [TrainRow {
        old_logprobs: Vec::new(),
        ..row(0.0)
    }];
    let losses = Losses {
        algorithm: &algorithm,
        rows: &rows,
        sums: None,
        first: false,
        new: true,
    };
    losses.gradient(&MicroBatch::padded(&rows, 0), &[-7.0, -7.0], &[0.0, 0.0], &mut tally);
    assert_eq!((tally.gap_max, tally.gap_over), (0.0, 0.0));
}
