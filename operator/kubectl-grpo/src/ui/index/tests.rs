use super::*;
use grpo_records::fixture;
use grpo_records::look::Records;
use grpo_records::look::entries::{EntriesOf, MetricsOf};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// The index of the fixture's run, read `page` entries at a time.
fn index(page: usize) -> Index {
    let dir = tempfile::tempdir().unwrap();
    fixture::write_store(dir.path());
    fixture::write_journal(dir.path());
    let records = Records::open(dir.path()).unwrap();
    let entries = records.entries(&EntriesOf::default()).unwrap().entries;
    let mut index = Index::default();
    for entries in entries.chunks(page) {
        index.take(EntryPage {
            after: entries.last().unwrap().sequence,
            entries: entries.to_vec(),
            more: false,
        });
    }
    index.measure(records.metrics(&MetricsOf::default()).unwrap(), Instant::now());
    index
}

#[test]
fn a_run_is_the_same_however_its_journal_is_cut_into_pages() {
    let whole = index(100).run();
    for page in [1, 3, 5] {
        assert_eq!(index(page).run(), whole);
    }
    assert_eq!(
        (whole.name.as_str(), whole.namespace.as_str(), whole.drivers),
        ("demo", "team", 2)
    );
    assert_eq!(whole.sequence, 14);
    assert!(whole.end.unwrap().succeeded);
}

#[test]
fn an_iteration_counts_its_verdicts_voids_and_times() {
    let run = index(100).run();
    let line = &run.iterations[0];
    assert_eq!((line.verdicts, line.resolved, line.voids, line.groups), (2, 1, 1, 1));
    assert_eq!(line.reward_mean, Some(0.5));
    assert_eq!((line.began, line.batch, line.stepped), (1006, Some(1011), Some(1012)));
    assert_eq!(run.voids[0].name, "SandboxLost");
    let evaluation = &run.evaluations[0];
    assert_eq!(
        (evaluation.resolved, evaluation.verdicts, evaluation.done),
        (1, 1, true)
    );
}

#[test]
fn a_version_knows_the_batch_that_made_it_and_what_sampled_with_it() {
    let run = index(100).run();
    let versions: Vec<_> = run
        .versions
        .iter()
        .map(|one| {
            (
                one.version.as_str(),
                one.from_iteration,
                one.iterations.clone(),
                one.evaluations.clone(),
            )
        })
        .collect();
    assert_eq!(
        versions,
        [
            ("a-v0", None, vec![1], vec!["heldout".to_owned()]),
            ("a-v1", Some(1), vec![], vec![]),
        ]
    );
}

#[test]
fn curves_have_the_numbers_of_iterations_of_steps_and_of_evaluations() {
    let run = index(100).run();
    let curve = |of: &str, name: &str| {
        let found = run
            .curves
            .iter()
            .find(|curve| curve.of == of && curve.name == name)
            .unwrap();
        (found.x.clone(), found.y.clone())
    };
    assert_eq!(curve("iteration", "resolved_rate"), (vec![1], vec![0.5]));
    assert_eq!(curve("step", "loss"), (vec![1], vec![0.25]));
    assert_eq!(curve("heldout", "resolved_rate"), (vec![0], vec![1.0]));
}

#[test]
fn a_task_is_found_in_every_part_of_the_run() {
    let task = index(100).task("psf__requests-1");
    let counts: Vec<_> = task
        .scopes
        .iter()
        .map(|scope| (scope.title.as_str(), scope.episodes.len()))
        .collect();
    assert_eq!(counts, [("iteration 1", 2), ("evaluation heldout of a-v0", 1)]);
}

#[test]
fn episodes_are_found_by_parts_of_their_names_and_by_outcome() {
    let index = index(100);
    let found = |word: &str| index.named(word).count();
    assert_eq!(found("requests"), 3);
    assert_eq!(found("iter-000001"), 2);
    assert_eq!(found("resolved"), 2);
    assert_eq!(found("nothing"), 0);
}

#[test]
fn an_instance_is_the_name_without_group_sample_and_attempt() {
    for (name, instance) in [
        ("psf__requests-1__g0__i3", "psf__requests-1"),
        ("psf__requests-1__g12__i3__t2", "psf__requests-1"),
        ("a__g1__g0__i0", "a__g1"),
        ("odd", "odd"),
    ] {
        assert_eq!(instance_of(name), instance);
    }
}

fn entry(index: &mut Index, event: Event) {
    let sequence = index.sequence() + 1;
    index.take(EntryPage {
        entries: vec![JournalEntry {
            schema: grpo_records::SCHEMA,
            writer: grpo_records::Writer::driver(1),
            sequence,
            at: 1000 + sequence as i64,
            event,
        }],
        after: sequence,
        more: false,
    });
}

#[test]
fn a_run_of_mode_finetune_has_its_steps_as_iterations() {
    let mut index = Index::default();
    for step in 1..=2 {
        entry(
            &mut index,
            Event::BatchWritten {
                iteration: step,
                step,
                sha256: String::new(),
                rows: 8,
            },
        );
        // The second step has no checkpoint, so it names the version of the first.
        entry(
            &mut index,
            Event::StepDone {
                step,
                weights: "l1-v1".into(),
                manifest_sha256: String::new(),
            },
        );
    }
    let run = index.run();
    let lines: Vec<_> = run
        .iterations
        .iter()
        .map(|line| (line.iteration, line.began, line.stepped))
        .collect();
    assert_eq!(lines, [(1, 1001, Some(1002)), (2, 1003, Some(1004))]);
    assert_eq!(
        (run.versions[0].published, run.versions[0].from_iteration),
        (Some(1002), Some(1))
    );
}

#[test]
fn the_curve_of_a_set_has_the_complete_evaluation_of_the_latest_lineage() {
    let mut index = Index::default();
    let mut evaluated = |lineage: &str, outcome, done| {
        let weights = format!("{lineage}-v5");
        let episode = format!("evaluations/heldout/{weights}/a__g0__i0");
        let reward = 0.0;
        entry(
            &mut index,
            Event::Verdict {
                episode,
                outcome,
                reward,
            },
        );
        if done {
            let set = "heldout".to_owned();
            let (resolved, episodes, voids) = (1, 1, 0);
            entry(
                &mut index,
                Event::EvaluationDone {
                    set,
                    weights,
                    resolved,
                    episodes,
                    voids,
                },
            );
        }
    };
    evaluated("l2", Outcome::Unresolved, true);
    evaluated("l10", Outcome::Resolved, true);
    evaluated("l11", Outcome::Unresolved, false);
    let curves = index.run().curves;
    assert_eq!((curves[0].x.clone(), curves[0].y.clone()), (vec![5], vec![1.0]));
}

/// A store whose reads of metrics are counted, and what a viewer knows of it.
struct Counted {
    dir: tempfile::TempDir,
    records: Records,
    index: Index,
    began: Instant,
    steps: BTreeSet<u32>,
    /// How often the file of each step was read.
    reads: BTreeMap<u32, u32>,
}

impl Counted {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fixture::write_store(dir.path());
        fixture::write_journal(dir.path());
        Self {
            records: Records::open(dir.path()).unwrap(),
            dir,
            index: Index::default(),
            began: Instant::now(),
            steps: BTreeSet::from([1]),
            reads: BTreeMap::new(),
        }
    }

    fn file(&self, step: u32) -> PathBuf {
        self.dir.path().join(paths::trainer_metrics(step))
    }

    fn write(&mut self, step: u32) {
        std::fs::write(self.file(step), format!(r#"{{"step": {step}, "loss": 0.5}}"#)).unwrap();
        self.steps.insert(step);
    }

    fn damage(&mut self, step: u32) {
        std::fs::write(self.file(step), "{\"step\": ").unwrap();
        self.steps.insert(step);
    }

    /// An entry that leads to a look for metrics.
    fn note(&mut self) {
        entry(&mut self.index, Event::DriverStarted { epoch: 2 });
    }

    /// Reads what is wanted so many seconds after the start.
    fn look(&mut self, seconds: u64) {
        let now = self.began + Duration::from_secs(seconds);
        while let Some(wanted) = self.index.metrics_wanted(now) {
            match wanted {
                MetricsWanted::Page(of) => {
                    for step in self.steps.iter().filter(|step| **step > of.steps_after) {
                        *self.reads.entry(*step).or_default() += 1;
                    }
                    self.index.measure(self.records.metrics(&of).unwrap(), now);
                }
                MetricsWanted::File(file) => {
                    let path = file.path();
                    let of_file = self.steps.iter().find(|step| paths::trainer_metrics(**step) == path);
                    *self.reads.entry(*of_file.unwrap()).or_default() += 1;
                    let bytes = std::fs::read(self.dir.path().join(path)).unwrap();
                    self.index.measure_again(file, Some(&bytes), now);
                }
            }
        }
    }

    /// The steps of the loss curve.
    fn shown(&self) -> Vec<u32> {
        let curves = self.index.run().curves;
        let loss = curves
            .into_iter()
            .find(|curve| curve.of == "step" && curve.name == "loss");
        loss.unwrap().x
    }
}

#[test]
fn a_damaged_file_is_read_again_after_30_seconds_and_each_file_behind_it_once() {
    let mut store = Counted::new();
    store.damage(2);
    store.look(0);
    for step in 3..30 {
        store.write(step);
        store.note();
        store.look(u64::from(step));
    }
    let once: BTreeMap<u32, u32> = (1..30).map(|step| (step, 1)).collect();
    assert_eq!(store.reads, once);
    let damaged = store.index.run().damaged;
    assert!(damaged.first().unwrap().contains("000002.json"), "{damaged:?}");
    // No entry is needed for it.
    for (seconds, reads) in [(30, 2), (31, 2), (59, 2), (60, 3)] {
        store.look(seconds);
        assert_eq!(store.reads[&2], reads, "after {seconds} seconds");
    }
    store.write(2);
    store.note();
    store.look(89);
    assert_eq!(store.index.run().damaged, damaged);
    store.look(90);
    assert!(store.index.run().damaged.is_empty());
    assert_eq!(store.shown(), (1..30).collect::<Vec<u32>>());
    store.look(1000);
    assert_eq!(store.reads.remove(&2), Some(4));
    assert!(store.reads.values().all(|reads| *reads == 1), "{:?}", store.reads);
}

#[test]
fn the_end_of_a_run_reads_a_damaged_file_once_more() {
    let mut store = Counted::new();
    store.damage(2);
    store.look(0);
    let finished = Event::RunFinished {
        succeeded: true,
        reason: None,
        message: None,
    };
    entry(&mut store.index, finished);
    for (seconds, reads) in [(1, 2), (2, 2), (30, 2), (31, 3)] {
        store.look(seconds);
        assert_eq!(store.reads[&2], reads, "after {seconds} seconds");
    }
    // Damage that is found after the end was read with the end.
    store.damage(3);
    store.note();
    for (seconds, reads) in [(40, 1), (41, 1), (70, 2)] {
        store.look(seconds);
        assert_eq!(store.reads[&3], reads, "after {seconds} seconds");
    }
}
