use super::*;

/// Reads a file like TensorBoard.
fn events(mut bytes: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_at(8);
        let (crc, rest) = rest.split_at(4);
        assert_eq!(crc, masked_crc(length));
        let (event, rest) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
        let (crc, rest) = rest.split_at(4);
        assert_eq!(crc, masked_crc(event));
        events.push(Event::decode(event).unwrap());
        bytes = rest;
    }
    events
}

#[test]
fn a_file_says_its_version_where_it_begins_and_every_number_of_every_step() {
    let folder = tempfile::tempdir().unwrap();
    let store = RunStore::existing(folder.path()).unwrap();
    let curves = Curves::begin(store.clone(), 2, 7).unwrap();
    for step in [7, 8] {
        let metrics = StepMetrics {
            step,
            loss: f64::from(step),
            ..Default::default()
        };
        curves.show(&metrics).unwrap();
    }
    let files = wait(store.files_below(paths::TENSORBOARD)).unwrap();
    assert!(files.len() == 1 && files[0].contains("tfevents") && files[0].ends_with("attempt-2"));
    let events = events(&wait(store.bytes(&files[0])).unwrap());
    assert_eq!(events[0].what, Some(What::FileVersion("brain.Event:2".into())));
    assert_eq!(
        (events[1].step, &events[1].what),
        (7, &Some(What::Session(Session { status: 1 })))
    );
    let losses = events[2..].iter().map(|event| match &event.what {
        Some(What::Summary(summary)) => {
            let loss = summary.values.iter().find(|value| value.tag == "trainer/loss").unwrap();
            (event.step, loss.simple_value)
        }
        other => panic!("{other:?}"),
    });
    assert_eq!(losses.collect::<Vec<_>>(), [(7, 7.0), (8, 8.0)]);
}

#[test]
fn checksums_are_masked_as_tensorflow_does() {
    // crc32c("123456789") is e3069283.
    assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(masked_crc(b"123456789"), 0xc78a_b0e5u32.to_le_bytes());
}
