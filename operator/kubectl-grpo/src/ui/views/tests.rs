use super::*;
use crate::ui::advantages::by_episode;
use grpo_records::look::entries::{EntriesOf, MetricsOf};
use grpo_records::look::{EpisodesOf, Records, TurnsOf};
use grpo_records::{TurnRecord, fixture};
use std::time::Instant;

const ITERATION: EpisodeScope = EpisodeScope::Iteration { iteration: 1 };

struct Store {
    _dir: tempfile::TempDir,
    records: Records,
    index: Index,
}

fn store() -> Store {
    let dir = tempfile::tempdir().unwrap();
    fixture::write_store(dir.path());
    fixture::write_journal(dir.path());
    let records = Records::open(dir.path()).unwrap();
    let mut index = Index::default();
    index.take(records.entries(&EntriesOf::default()).unwrap());
    index.measure(records.metrics(&MetricsOf::default()).unwrap(), Instant::now());
    Store {
        _dir: dir,
        records,
        index,
    }
}

fn episodes(store: &Store) -> Vec<Episode> {
    let wanted = EpisodesOf {
        scope: paths::scope(&ITERATION),
        ..EpisodesOf::default()
    };
    store.records.episodes(&wanted).unwrap().episodes
}

#[test]
fn a_missing_vote_has_its_cause() {
    let of = |vote: Vote| why_missing(&vote).unwrap_or_default();
    let text = |cut, vote| Vote {
        cut,
        vote,
        ..Vote::default()
    };
    let (lost, refused) = (Some("away".to_owned()), Some("too long".to_owned()));
    assert_eq!(of(text(false, Some(1))), "");
    assert_eq!(of(text(true, None)), "cut off at the limit of tokens, or by a filter");
    assert_eq!(of(text(false, None)), "its text has no verdict");
    assert_eq!(
        of(Vote {
            lost,
            ..Vote::default()
        }),
        "away"
    );
    assert_eq!(
        of(Vote {
            refused,
            ..Vote::default()
        }),
        "too long"
    );
}

/// These episodes of the iteration, whose batch has the rows of these samples.
fn of_batch(store: &Store, episodes: &[Episode], samples: &[u32]) -> ScopeView {
    let row = |sample: &u32| fixture::RESOLVED.replace("__i0", &format!("__i{sample}"));
    let rows: Vec<String> = samples.iter().map(row).collect();
    let step = store.index.step_of(&ITERATION).unwrap().step;
    let advantages = by_episode(&rows, store.index.advantages(step).unwrap());
    scope(&store.index, &ITERATION, episodes, &advantages, false)
}

fn iteration(store: &Store) -> ScopeView {
    of_batch(store, &episodes(store), &[0, 1])
}

#[test]
fn a_group_has_its_samples_with_rewards_and_the_advantages_of_the_step() {
    let view = iteration(&store());
    assert_eq!(view.title, "iteration 1");
    let group = &view.groups[0];
    let samples: Vec<_> = group
        .episodes
        .iter()
        .map(|line| (line.sample, line.outcome.as_str(), line.reward, line.advantage))
        .collect();
    assert_eq!(
        samples,
        [
            (0, "Resolved", Some(1.0), Some(0.5)),
            (1, "Unresolved", Some(0.0), Some(-0.5)),
            (2, "Void", None, None),
            (3, "Unfinished", None, None),
        ]
    );
    assert_eq!((group.reward_mean, group.reward_std), (Some(0.5), Some(0.5)));
    assert_eq!(view.voids[0].message, "node n1 is gone");
}

#[test]
fn an_episode_that_was_answered_in_text_is_marked() {
    let store = store();
    let mut all = episodes(&store);
    all[1].meta.as_mut().unwrap().untrainable = true;
    let view = of_batch(&store, &all, &[0, 1]);
    let marks: Vec<bool> = view.groups[0].episodes.iter().map(|line| line.untrainable).collect();
    assert_eq!(marks, [false, true, false, false]);
}

#[test]
fn equal_patches_of_a_group_are_counted() {
    let view = iteration(&store());
    // The fixture gives all of its ended episodes one patch.
    assert_eq!(view.groups[0].episodes[0].same_patch, 2);
    assert_eq!(view.groups[0].episodes[3].same_patch, 0);
}

#[test]
fn a_verdict_that_is_not_in_the_batch_takes_no_advantage_of_another_sample() {
    let store = store();
    let mut all = episodes(&store);
    let third = all[2].meta.as_mut().unwrap();
    (third.outcome, third.reward) = (Outcome::Resolved, Some(1.0));
    // The first sample is too stale, and the batch has the others in another order.
    let view = of_batch(&store, &all, &[2, 1]);
    let samples: Vec<_> = view.groups[0]
        .episodes
        .iter()
        .map(|line| (line.sample, line.reward, line.advantage))
        .collect();
    assert_eq!(
        samples,
        [
            (0, Some(1.0), None),
            (1, Some(0.0), Some(-0.5)),
            (2, Some(1.0), Some(0.5)),
            (3, None, None),
        ]
    );
}

#[test]
fn advantages_that_do_not_fit_the_episodes_are_not_shown() {
    let mut store = store();
    let mut metrics = store.records.metrics(&MetricsOf::default()).unwrap();
    metrics.steps[0].advantages = vec![vec![0.5]];
    store.index.measure(metrics, Instant::now());
    assert_eq!(iteration(&store).groups[0].episodes[0].advantage, None);
}

#[test]
fn an_episode_has_its_turns_patch_verdict_and_flags() {
    let store = store();
    let view = store.records.episode(fixture::RESOLVED).unwrap();
    let wanted = TurnsOf {
        path: fixture::RESOLVED.to_owned(),
        from: 0,
    };
    let turns = store.records.turns(&wanted).unwrap().turns;
    let line = iteration(&store).groups[0].episodes[0].clone();
    let detail = episode(&view, line, &turns, &[]);
    assert_eq!(detail.scope, "rollouts/iter-000001");
    assert_eq!(detail.turns.len(), 2);
    assert_eq!(detail.turns[0].opening[0].role, "system");
    assert_eq!(detail.turns[1].result, "exit 0 in 5 ms");
    assert!((detail.turns[1].logprob + 0.6).abs() < 1e-6);
    assert!(detail.patch.unwrap().text.contains("+b"));
    assert_eq!(detail.grade.unwrap().status, "Judged");
    assert_eq!(detail.flags.len(), 1);
}

#[test]
fn samples_diverge_at_the_first_sampled_token_that_differs() {
    let turn = |number: u32, sampled: &[u32]| TurnRecord {
        sampled: sampled.to_vec(),
        ..fixture::turn(number, "", "")
    };
    let first = [turn(0, &[1, 2]), turn(1, &[3, 4])];
    let at = |turns: &[TurnRecord]| divergence(&first, turns, None).map(|found| (found.turn, found.token));
    assert_eq!(at(&first), None);
    assert_eq!(at(&[turn(0, &[1, 9]), turn(1, &[3, 4])]), Some((0, 1)));
    assert_eq!(at(&[turn(0, &[1, 2]), turn(1, &[3])]), Some((1, 1)));
    assert_eq!(at(&[turn(0, &[1, 2]), turn(1, &[3, 4]), turn(2, &[5])]), Some((2, 0)));
}

#[test]
fn the_place_of_a_divergence_in_the_text_counts_as_browsers_do() {
    let json = serde_json::json!({
        "decoder": {"type": "ByteLevel"},
        "model": {"vocab": {"a": 0, "b": 1}},
        "added_tokens": [{"id": 2, "content": "😀"}],
    });
    let vocabulary = Vocabulary::of(json.to_string().as_bytes()).unwrap();
    let turn = |sampled: &[u32], text: &str| TurnRecord {
        sampled: sampled.to_vec(),
        text: text.to_owned(),
        ..fixture::turn(0, "", "")
    };
    let found = divergence(&[turn(&[2, 0], "😀a")], &[turn(&[2, 1], "😀b")], Some(&vocabulary));
    assert_eq!(found.unwrap().offset, Some(2));
}
