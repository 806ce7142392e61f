use super::super::points::Point;
use super::*;

/// Reads a log as LevelDB's reader does: the records, each checked.
fn records(file: &[u8]) -> Vec<Vec<u8>> {
    assert_eq!(file[..FRAME], BEGINNING);
    let (mut at, mut records, mut open) = (FRAME, Vec::new(), None::<Vec<u8>>);
    while at < file.len() {
        let left = BLOCK - at % BLOCK;
        if left < FRAME {
            assert!(file[at..at + left].iter().all(|byte| *byte == 0));
            at += left;
            continue;
        }
        let sum = u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        let length = usize::from(u16::from_le_bytes(file[at + 4..at + 6].try_into().unwrap()));
        let (kind, part) = (file[at + 6], &file[at + FRAME..at + FRAME + length]);
        assert!(FRAME + length <= left, "a fragment does not cross a block");
        assert_eq!(crc32fast::hash(&[&[kind], part].concat()), sum);
        match (kind, &mut open) {
            (1, None) => records.push(part.to_vec()),
            (2, None) => open = Some(part.to_vec()),
            (3, Some(begun)) => begun.extend(part),
            (4, Some(_)) => records.push([open.take().unwrap(), part.to_vec()].concat()),
            found => panic!("fragment {found:?} at {at}"),
        }
        at += FRAME + length;
    }
    assert_eq!(open, None);
    records
}

#[test]
fn records_of_any_length_are_read_back_in_order_wherever_a_block_ends() {
    let mut file = BEGINNING.to_vec();
    let mut written = Vec::new();
    for length in (0..200)
        .chain([BLOCK - 2 * FRAME, BLOCK, 3 * BLOCK + 5])
        .chain((BLOCK - 60)..(BLOCK - 1))
    {
        let record: Vec<u8> = (0..length).map(|byte| (byte % 251) as u8).collect();
        let at = file.len();
        frame(at, &record, &mut file);
        written.push(record);
    }
    assert_eq!(records(&file), written);
}

#[tokio::test]
async fn curves_have_the_step_as_their_axis_and_records_count_on() {
    let folder = tempfile::tempdir().unwrap();
    let store = RunStore::make(folder.path()).unwrap();
    let config = super::super::tests::config(serde_json::json!({"wandb": {"project": "swe"}}));
    let wanted = config.spec.trackers.clone().unwrap().wandb.unwrap();
    let mut tracker = Wandb::of(&wanted, &config, store, 3);
    let point = |entry, curve: &str, step, at| Point {
        entry,
        curve: curve.to_owned(),
        step,
        at,
        value: 0.5,
    };
    assert_eq!(tracker.begin(5).await.unwrap(), 0);
    // The next iteration's batch is there before the step of this one.
    let points = [
        point(4, "rollout/a", 2, 10),
        point(4, "rollout/b", 2, 10),
        point(5, "trainer/c", 1, 11),
    ];
    tracker.add(4, &points[..2]).await.unwrap();
    tracker.add(5, &points[2..]).await.unwrap();
    for _ in 0..2 {
        tracker.stand(Standing::Working).await.unwrap();
    }
    for _ in 0..2 {
        tracker.stand(Standing::Ended { succeeded: false }).await.unwrap();
    }

    let file = std::fs::read(folder.path().join("wandb/attempt-3/run-uid.wandb")).unwrap();
    let decoded: Vec<Record> = records(&file)
        .iter()
        .map(|bytes| Record::decode(&bytes[..]).unwrap())
        .collect();
    assert!((1..).zip(&decoded).all(|(number, record)| record.num == number));
    let row = |items: &[Item]| {
        let shown = items.iter().map(|item| format!("{} {}", item.key, item.value_json));
        shown.collect::<Vec<_>>().join(", ")
    };
    let shown: Vec<String> = decoded
        .iter()
        .map(|record| match record.what.as_ref().unwrap() {
            What::Header(_) => "header".to_owned(),
            What::Run(run) => format!("run {} of {}", run.display_name, run.project),
            What::Metric(metric) => format!("metric {} by {}", metric.name, metric.step_metric),
            What::History(history) => format!("history {}", row(&history.item)),
            What::Summary(summary) => format!("summary {}", row(&summary.update)),
            What::Exit(exit) => format!("exit {}", exit.exit_code),
            What::Final(_) => "final".to_owned(),
        })
        .collect();
    assert_eq!(
        shown,
        [
            "header",
            "run r of swe",
            "metric step by ",
            "metric rollout/a by step",
            "metric rollout/b by step",
            "history rollout/a 0.5, rollout/b 0.5, step 2, _timestamp 10, _runtime 5, _step 0",
            "summary _runtime 5, _step 0, _timestamp 10, rollout/a 0.5, rollout/b 0.5, step 2",
            "metric trainer/c by step",
            "history trainer/c 0.5, step 1, _timestamp 11, _runtime 6, _step 1",
            "summary _runtime 6, _step 1, _timestamp 11, step 1, trainer/c 0.5",
            "exit 1",
            "final",
        ]
    );
    let Some(What::Run(run)) = &decoded[1].what else {
        panic!("the second record is the run");
    };
    let update = &run.config.as_ref().unwrap().update;
    let mode = update.iter().find(|item| item.key == "mode").unwrap();
    assert_eq!(mode.value_json, "\"Train\"");
    assert!(
        update.iter().all(|item| item.key != "driver"),
        "its variables may be secret"
    );

    // After each failure a file begins in place of the last one.
    for _ in 0..20 {
        tracker.begin(5).await.unwrap();
    }
    tracker.add(5, &points).await.unwrap();
    let left = tracker.store.list("wandb").await.unwrap();
    let left: Vec<&str> = left.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(left, ["wandb/attempt-3.20/run-uid.wandb"]);
    let file = std::fs::read(folder.path().join(left[0])).unwrap();
    let written = records(&file).len();
    assert_eq!(
        written,
        decoded.len() - 3,
        "all rows, with one summary and without an end"
    );
}
