use super::*;

#[test]
fn every_number_of_a_step_has_a_name_to_be_shown_by() {
    let metrics = StepMetrics {
        step: 3,
        loss: 0.5,
        logprob_gap_max: 0.25,
        row_tokens: 300,
        seconds: 2.0,
        model_flops: 5e12,
        mfu: Some(0.4),
        ..Default::default()
    };
    let numbers = metrics.numbers();
    let of = |name: &str| numbers.iter().find(|(found, _)| found == name).map(|(_, value)| *value);
    assert_eq!(of("loss"), Some(0.5));
    assert_eq!(of("logprob_gap_max"), Some(0.25));
    assert_eq!(of("step_seconds"), Some(2.0));
    assert_eq!(of("row_tokens_per_second"), Some(150.0));
    assert_eq!((of("model_flops_per_second"), of("mfu")), (Some(2.5e12), Some(0.4)));
    assert_eq!((of("step"), of("weights"), of("advantages")), (None, None, None));
}

#[test]
fn a_record_without_a_share_of_the_peak_is_read_and_shows_none() {
    let stored = r#"{"step": 3, "weights": "l1-v3", "loss": 0.5, "seconds": 2.0}"#;
    let metrics: StepMetrics = serde_json::from_str(stored).unwrap();
    assert_eq!((metrics.step, metrics.model_flops, metrics.mfu), (3, 0.0, None));
    assert!(metrics.numbers().iter().all(|(name, _)| name != "mfu"));
    assert!(serde_json::to_value(&metrics).unwrap().get("mfu").is_none());
}
