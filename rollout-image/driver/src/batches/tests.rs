use super::*;
use grpo_records::{EpisodeEnd, EpisodeKey, EpisodeScope, Outcome, RowRule, SCHEMA, TurnRecord, VoidReason, fixture};

fn episode(mount: &tempfile::TempDir, group: u32, sample: u32, outcome: Outcome, version: &str) -> EpisodeMeta {
    that_sampled(mount, group, sample, outcome, version, &[7])
}

fn that_sampled(
    mount: &tempfile::TempDir,
    group: u32,
    sample: u32,
    outcome: Outcome,
    version: &str,
    sampled: &[u32],
) -> EpisodeMeta {
    let key = EpisodeKey {
        scope: EpisodeScope::Iteration { iteration: 1 },
        instance: "a".into(),
        group,
        sample,
    };
    let reward = match outcome {
        Outcome::Resolved => Some(1.0),
        Outcome::Unresolved => Some(0.0),
        Outcome::Void { .. } => None,
    };
    let meta = EpisodeMeta {
        schema: SCHEMA,
        writer: Writer::driver(1),
        run: "u".into(),
        key,
        attempt: 1,
        outcome,
        reward,
        process: None,
        end: EpisodeEnd::Submitted,
        turns: 1,
        tokens: 2,
        sampled_tokens: 1,
        format_errors: 0,
        truncated: false,
        weights: vec![version.into()],
        untrainable: false,
        patch_bytes: 0,
        patch_sha256: None,
        graded: None,
        grade: None,
        message: None,
        agent_millis: 0,
        grade_millis: 0,
        waited_millis: 0,
        at: 0,
    };
    let turn = TurnRecord {
        weights: version.into(),
        sampled: sampled.to_vec(),
        logprobs: vec![-0.5; sampled.len()],
        ..fixture::look_turn()
    };
    fixture::write_ended(&mount.path().join("n/r"), &fixture::ended(&meta, &[turn]));
    meta
}

fn heading(max_staleness: u32, step: u32) -> Heading {
    Heading {
        writer: Writer::driver(1),
        run: "u".into(),
        iteration: step,
        step,
        max_staleness,
        rows: RowRule::default(),
        chosen: None,
    }
}

/// Defects 17 and 25: a void is not a zero; it leaves group, baseline and batch.
#[tokio::test]
async fn a_void_leaves_its_group_and_a_group_of_one_is_dropped_and_counted() {
    let mount = tempfile::tempdir().unwrap();
    let store = RunStore::open(mount.path(), "n/r").unwrap();
    let void = || Outcome::void(VoidReason::SandboxLost);
    let metas = [
        episode(&mount, 0, 0, Outcome::Resolved, "a-v0"),
        episode(&mount, 0, 1, void(), "a-v0"),
        episode(&mount, 0, 2, Outcome::Unresolved, "a-v0"),
        episode(&mount, 1, 0, Outcome::Resolved, "a-v0"),
        episode(&mount, 1, 1, void(), "a-v0"),
    ];
    let made = make(&store, heading(0, 1), &metas).await.unwrap();
    assert_eq!(made.batch.rows.len(), 2);
    assert_eq!(made.batch.groups[0].rewards, [1.0, 0.0]);
    assert_eq!(made.batch.groups[0].voids, 1);
    assert!(matches!(
        made.dropped[..],
        [Event::GroupDropped { group: 1, valid: 1, .. }]
    ));
}

#[tokio::test]
async fn tokens_of_weights_older_than_allowed_do_not_get_into_a_batch() {
    let mount = tempfile::tempdir().unwrap();
    let store = RunStore::open(mount.path(), "n/r").unwrap();
    let metas = [
        episode(&mount, 0, 0, Outcome::Resolved, "a-v1"),
        episode(&mount, 0, 1, Outcome::Unresolved, "a-v1"),
        episode(&mount, 0, 2, Outcome::Unresolved, "a-v0"),
    ];
    let strict = make(&store, heading(0, 2), &metas).await.unwrap();
    assert_eq!(
        (strict.batch.rows.len(), strict.too_stale, strict.staleness_max),
        (2, 1, 0)
    );
    let loose = make(&store, heading(1, 2), &metas).await.unwrap();
    assert_eq!(
        (loose.batch.rows.len(), loose.too_stale, loose.staleness_max),
        (3, 0, 1)
    );
}

#[tokio::test]
async fn an_episode_without_a_sampled_token_is_left_out_and_the_batch_is_made() {
    let mount = tempfile::tempdir().unwrap();
    let store = RunStore::open(mount.path(), "n/r").unwrap();
    let metas = [
        episode(&mount, 0, 0, Outcome::Resolved, "a-v0"),
        episode(&mount, 0, 1, Outcome::Unresolved, "a-v0"),
        that_sampled(&mount, 0, 2, Outcome::Unresolved, "a-v0", &[]),
    ];
    let made = make(&store, heading(0, 1), &metas).await.unwrap();
    assert_eq!(made.batch.rows.len(), 2);
    assert_eq!(
        (&made.batch.groups[0].rewards[..], made.batch.groups[0].voids),
        (&[1.0, 0.0][..], 1)
    );
}

#[tokio::test]
async fn an_episode_that_was_answered_in_text_is_in_no_batch() {
    let mount = tempfile::tempdir().unwrap();
    let store = RunStore::open(mount.path(), "n/r").unwrap();
    let mut metas = [
        episode(&mount, 0, 0, Outcome::Resolved, "a-v0"),
        episode(&mount, 0, 1, Outcome::Unresolved, "a-v0"),
    ];
    metas[1].untrainable = true;
    let error = make(&store, heading(0, 1), &metas).await.unwrap_err();
    assert!(
        matches!(&error, BatchError::Untrainable { folder } if folder.contains("__i1")),
        "{error}"
    );
}
