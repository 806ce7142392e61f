use super::*;
use grpo_crds::algorithm::Aggregation;

fn row(sequence: usize, trained: usize) -> TrainRow {
    TrainRow {
        tokens: vec![1; trained + 2],
        weights: [vec![0.0; 2], vec![1.0; trained]].concat(),
        sequence,
        ..Default::default()
    }
}

#[test]
fn a_batch_is_cut_into_whole_sequences_of_nearly_as_many_each() {
    let rows: Vec<TrainRow> = [0, 0, 1, 2, 2, 3, 4]
        .into_iter()
        .map(|sequence| row(sequence, 1))
        .collect();
    let sizes = |parts| cut(rows.clone(), parts).iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(
        (sizes(1), sizes(2), sizes(99)),
        (vec![7], vec![5, 2], vec![2, 1, 2, 1, 1])
    );
    let second = &cut(rows.clone(), 2)[1];
    assert_eq!(second.iter().map(|row| row.sequence).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(cut(Vec::new(), 4), [Vec::new()]);
}

#[test]
fn a_sequence_of_several_rows_has_one_denominator() {
    let mut rows = vec![row(5, 1), row(5, 3), row(9, 2)];
    let algorithm = Algorithm {
        aggregation: Aggregation::SequenceMean,
        ..Default::default()
    };
    weigh(&mut rows, &algorithm);
    let weights: Vec<f32> = rows.iter().map(|row| row.weights[2]).collect();
    assert_eq!(weights, [0.125, 0.125, 0.25]);
}

#[test]
fn sequences_without_an_advantage_are_left_out_and_count_in_the_weights_of_the_others() {
    let with = |sequence, advantage| TrainRow {
        advantage,
        ..row(sequence, 2)
    };
    // One row of the third sequence has an advantage: the sequence's ratio needs both rows.
    let rows = vec![with(0, 0.5), with(1, 0.0), with(2, 0.0), with(2, -0.5)];
    let left = |algorithm: &Algorithm| {
        let mut rows = rows.clone();
        weigh(&mut rows, algorithm);
        (leave_out_what_adds_nothing(&mut rows, algorithm), rows)
    };
    let plain = Algorithm {
        aggregation: Aggregation::SequenceMean,
        ..Default::default()
    };
    let (tokens, found) = left(&plain);
    assert_eq!(tokens, 2);
    let told = |row: &TrainRow| (row.sequence, row.advantage);
    assert_eq!(
        found.iter().map(told).collect::<Vec<_>>(),
        [(0, 0.5), (1, 0.0), (1, -0.5)]
    );
    // The weight for three sequences, not for two.
    assert_eq!(found[0].weights[2], 1.0 / 6.0);

    let in_loss = Algorithm {
        kl: Some(serde_json::from_str("{}").unwrap()),
        ..plain.clone()
    };
    let entropy = Algorithm {
        entropy_coefficient: 0.01,
        ..plain
    };
    for algorithm in [in_loss, entropy] {
        let (tokens, rows) = left(&algorithm);
        assert_eq!((tokens, rows.len()), (0, 4));
    }
}
