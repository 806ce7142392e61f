use super::*;
use proptest::prelude::*;

fn row() -> impl Strategy<Value = TokenRow> {
    (0usize..40).prop_flat_map(|n| {
        (
            prop::collection::vec(any::<u32>(), n),
            prop::collection::vec(0u8..2, n),
            prop::collection::vec(-20.0f32..0.0, n),
            prop::collection::vec(0u32..9, 0..3),
        )
            .prop_map(move |(tokens, mask, logprobs, turns)| TokenRow {
                tokens,
                mask,
                logprobs,
                weights: vec![WeightsSpan {
                    from: 0,
                    to: n,
                    version: "l1-v3".into(),
                }],
                experts: vec![ExpertsSpan {
                    from: 0,
                    to: n,
                    file: "rollouts/x".into(),
                    sha256: "00".into(),
                }],
                turns,
            })
    })
}

proptest! {
    #[test]
    fn rows_survive_their_file_bit_by_bit(rows in prop::collection::vec(row(), 0..12)) {
        let bytes = encode(&rows).unwrap();
        prop_assert_eq!(decode(&bytes).unwrap(), rows.clone());
        prop_assert_eq!(encode(&rows).unwrap(), bytes);
    }

    #[test]
    fn no_bytes_are_mistaken_for_rows(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(decode(&bytes).is_err());
    }
}

#[test]
fn rows_of_another_schema_are_refused_by_its_number() {
    let metadata = HashMap::from([(HEADER.to_owned(), format!("{{\"schema\":{},\"rows\":[]}}", SCHEMA + 1))]);
    let none: Vec<(String, TensorView<'_>)> = Vec::new();
    let bytes = safetensors::serialize(none, Some(metadata)).unwrap();
    assert!(matches!(decode(&bytes), Err(RowsError::Schema { found }) if found == SCHEMA + 1));
}

#[test]
fn a_file_of_weights_is_refused() {
    let none: Vec<(String, TensorView<'_>)> = Vec::new();
    let bytes = safetensors::serialize(none, None).unwrap();
    assert!(decode(&bytes).unwrap_err().to_string().contains("has no grpo"));
}

#[test]
fn tokens_of_another_type_are_refused() {
    let header = serde_json::json!({"schema": SCHEMA, "rows": [{"turns": [], "weights": []}]});
    let metadata = HashMap::from([(HEADER.to_owned(), header.to_string())]);
    let tokens = TensorView::new(Dtype::I32, vec![1], &[1, 0, 0, 0]).unwrap();
    let bytes = safetensors::serialize([("rows.0.tokens", tokens)], Some(metadata)).unwrap();
    let error = decode(&bytes).unwrap_err().to_string();
    assert!(error.contains("rows.0.tokens is I32"), "{error}");
}
