use super::*;
use crate::record::{SCHEMA, Writer};

fn folded(events: Vec<Event>) -> RunState {
    let mut state = RunState::default();
    for (at, event) in events.into_iter().enumerate() {
        state.apply(&JournalEntry {
            schema: SCHEMA,
            writer: Writer::driver(1),
            sequence: at as u64 + 1,
            at: 0,
            event,
        });
    }
    state
}

fn started(iteration: u32) -> Event {
    Event::IterationStarted {
        iteration,
        weights: "a-v0".into(),
        tasks: vec![0],
        dynamic: None,
    }
}

fn written(iteration: u32) -> Event {
    Event::BatchWritten {
        iteration,
        step: iteration,
        sha256: "00".into(),
        rows: 2,
    }
}

fn done(step: u32) -> Event {
    Event::StepDone {
        step,
        weights: format!("a-v{step}"),
        manifest_sha256: "00".into(),
    }
}

#[test]
fn an_iteration_that_began_while_the_step_before_it_ran_does_not_hide_that_step() {
    let overlap = vec![started(1), written(1), started(2)];
    assert_eq!(folded(overlap.clone()).finished_iterations(), 0);
    let both = [overlap.clone(), vec![written(2)]].concat();
    assert_eq!(folded(both).unfinished_iteration(), Some(1));
    let stepped = [overlap, vec![done(1)]].concat();
    assert_eq!(
        (
            folded(stepped.clone()).unfinished_iteration(),
            folded(stepped.clone()).finished_iterations()
        ),
        (Some(2), 1)
    );
    let all = [stepped, vec![written(2), done(2)]].concat();
    assert_eq!(
        (
            folded(all.clone()).unfinished_iteration(),
            folded(all).finished_iterations()
        ),
        (None, 2)
    );
}

#[test]
fn a_finished_run_is_not_finished_while_another_driver_or_run_works_in_its_store() {
    let finished = Event::RunFinished {
        succeeded: true,
        reason: None,
        message: None,
    };
    let taken_over = Event::RunStarted {
        run: "uid-2".into(),
        namespace: "ns".into(),
        name: "run".into(),
        seed: 0,
        tasks_sha256: "00".into(),
        tasks: 1,
        agent: Default::default(),
        rows_per_turn: false,
        process: None,
        reward: None,
        sets_sha256: None,
        inputs_sha256: None,
    };
    for begins in [Event::DriverStarted { epoch: 2 }, taken_over] {
        assert!(folded(vec![finished.clone()]).finished.is_some());
        assert_eq!(
            folded(vec![finished.clone(), begins.clone()]).finished,
            None,
            "{begins:?}"
        );
        let again = folded(vec![finished.clone(), begins, finished.clone()]).finished;
        assert!(again.is_some_and(|finished| finished.succeeded));
    }
}

fn verdict(iteration: u32, task: &str, group: u32, sample: u32, outcome: Outcome) -> Event {
    let key = EpisodeKey {
        scope: EpisodeScope::Iteration { iteration },
        instance: task.into(),
        group,
        sample,
    };
    Event::Verdict {
        episode: key.dir(1 + sample),
        reward: f32::from(u8::from(outcome == Outcome::Resolved)),
        outcome,
    }
}

#[test]
fn the_pass_rate_of_a_task_is_that_of_its_last_iteration_that_counted() {
    let begun = |iteration, tasks: &[u32]| Event::IterationStarted {
        iteration,
        weights: "a-v0".into(),
        tasks: tasks.to_vec(),
        dynamic: Some(crate::DynamicStart {
            wanted: 1,
            places: tasks.iter().map(|task| u64::from(*task)).collect(),
        }),
    };
    let (yes, no) = (Outcome::Resolved, Outcome::Unresolved);
    let state = folded(vec![
        begun(1, &[7]),
        // The instance's name looks like it has its own group number.
        verdict(1, "a__g3", 0, 0, no.clone()),
        verdict(1, "a__g3", 0, 1, no.clone()),
        Event::GroupsAdded {
            iteration: 1,
            tasks: vec![8],
            places: vec![8],
        },
        verdict(1, "b", 1, 0, yes.clone()),
        verdict(1, "b", 1, 1, no.clone()),
        begun(2, &[7, 8]),
        verdict(2, "a__g3", 0, 0, yes.clone()),
        verdict(2, "a__g3", 0, 1, no),
        verdict(2, "b", 1, 0, yes.clone()),
        Event::GroupDropped {
            iteration: 2,
            group: 1,
            valid: 1,
            reason: DropReason::Surplus,
        },
        begun(3, &[7]),
        verdict(3, "a__g3", 0, 0, yes),
    ]);
    let rates = |k| state.pass_rates(k).into_iter().collect::<Vec<_>>();
    assert_eq!(rates(1), []);
    assert_eq!(rates(2), [(7, 0.0), (8, 0.5)]);
    assert_eq!(rates(3), [(7, 0.5), (8, 0.5)]);
    assert_eq!(rates(4), [(7, 1.0), (8, 0.5)]);
    assert_eq!(
        (state.iterations[&1].next_place(), state.iterations[&2].next_place()),
        (Some(9), Some(8))
    );
}
