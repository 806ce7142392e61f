use super::*;

#[test]
fn the_busiest_expert_is_held_against_the_mean_of_its_own_layer() {
    let mut metrics = StepMetrics::default();
    tell_loads(&mut metrics, &[Vec::new(), vec![2, 2, 2], vec![0, 9, 0]]);
    assert_eq!((metrics.expert_load_max, metrics.experts_idle), (Some(3.0), Some(2)));
    tell_loads(&mut metrics, &[Vec::new()]);
    assert_eq!((metrics.expert_load_max, metrics.experts_idle), (None, None));
}

#[test]
fn a_stored_batch_is_the_ordered_one_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = TrainerStore::existing(folder.path()).unwrap();
    let batch = Batch::new(grpo_records::Writer::driver(1), "run", 1, 2);
    store.create("batch", crate::state::json(&batch).unwrap()).unwrap();
    assert_eq!(read(&store, 2, "batch", None).unwrap(), batch);
    for (step, path, checksum, word) in [
        (3, "batch", None, "step 2, not of step 3"),
        (2, "batch", Some("00"), "sha256"),
        (2, "nothing", None, "nothing"),
    ] {
        let error = read(&store, step, path, checksum).unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains(word), "{error}");
    }
}
