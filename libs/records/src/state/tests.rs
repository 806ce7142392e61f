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
