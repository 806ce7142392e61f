use super::entries::{EntriesOf, EntryPage, MetricsOf};
use super::*;
use crate::store::counted::counted;
use crate::{Outcome, fixture};
use proptest::prelude::*;

fn store() -> (tempfile::TempDir, Records) {
    let dir = tempfile::tempdir().unwrap();
    fixture::write_store(dir.path());
    let records = Records::open(dir.path()).unwrap();
    (dir, records)
}

fn of(scope: &str) -> EpisodesOf {
    EpisodesOf {
        scope: scope.into(),
        ..EpisodesOf::default()
    }
}

#[test]
fn iterations_and_evaluations_are_found_by_their_folders() {
    let (_dir, records) = store();
    let named: Vec<String> = records.contents().unwrap().scopes.iter().map(paths::scope).collect();
    assert_eq!(named, ["rollouts/iter-000001", "evaluations/heldout/a-v0"]);
}

#[test]
fn an_empty_store_has_no_episodes_and_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let records = Records::open(dir.path()).unwrap();
    assert_eq!(records.contents().unwrap(), Contents::default());
    assert_eq!(
        records.episodes(&of("rollouts/iter-000001")).unwrap(),
        EpisodePage::default()
    );
}

#[test]
fn pages_follow_each_other_without_gap_or_repetition() {
    let (_dir, records) = store();
    let mut wanted = EpisodesOf {
        limit: Some(3),
        ..of("rollouts/iter-000001")
    };
    let first = records.episodes(&wanted).unwrap();
    assert_eq!(first.episodes.len(), 3);
    wanted.after = first.next.clone();
    let second = records.episodes(&wanted).unwrap();
    let names: Vec<&str> = first
        .episodes
        .iter()
        .chain(&second.episodes)
        .map(Episode::name)
        .collect();
    assert_eq!(
        names,
        [
            "psf__requests-1__g0__i0",
            "psf__requests-1__g0__i1",
            "psf__requests-1__g0__i2",
            "psf__requests-1__g0__i3"
        ]
    );
    assert_eq!(second.next, None);
    let outcomes: Vec<Option<Outcome>> = first
        .episodes
        .iter()
        .chain(&second.episodes)
        .map(|episode| episode.meta.as_ref().map(|meta| meta.outcome.clone()))
        .collect();
    assert_eq!((&outcomes[0], &outcomes[3]), (&Some(Outcome::Resolved), &None));
}

/// The pages from this one on, and their names.
fn rest(records: &Records, mut wanted: EpisodesOf) -> (usize, Vec<String>) {
    let (mut pages, mut names) = (0, Vec::new());
    loop {
        let page = records.episodes(&wanted).unwrap();
        pages += 1;
        names.extend(page.episodes.iter().map(|episode| episode.name().to_owned()));
        match page.next {
            Some(next) => wanted.after = Some(next),
            None => return (pages, names),
        }
    }
}

#[test]
fn pages_of_a_scope_cost_one_listing_and_one_read_for_each_episode() {
    let (dir, _) = store();
    let (store, reads) = counted(&RunStore::existing(dir.path()).unwrap());
    let wanted = EpisodesOf {
        limit: Some(2),
        ..of("rollouts/iter-000001")
    };
    let (pages, names) = rest(&Records::of(store), wanted);
    assert_eq!((pages, names.len()), (2, 4));
    assert_eq!((reads.listings(), reads.lengths(), reads.all()), (1, 0, 4));
    assert_eq!(reads.most(), 2, "a page is read concurrently");
}

#[test]
fn a_reader_that_begins_again_or_continues_after_the_last_page_sees_new_episodes() {
    let (dir, records) = store();
    let wanted = |after: Option<&str>| EpisodesOf {
        limit: Some(3),
        after: after.map(str::to_owned),
        ..of("rollouts/iter-000001")
    };
    let add = |name: &str| std::fs::create_dir_all(dir.path().join("rollouts/iter-000001").join(name)).unwrap();
    let first = records.episodes(&wanted(None)).unwrap();
    add("zzz__g9__i0");
    assert_eq!(rest(&records, wanted(None)).1.len(), 5);
    assert_eq!(rest(&records, wanted(first.next.as_deref())).1.len(), 2);
    add("zzz__g9__i1");
    assert_eq!(rest(&records, wanted(Some("zzz__g9__i0"))).1, ["zzz__g9__i1"]);
}

#[test]
fn a_verdict_too_large_to_read_is_refused() {
    let (dir, records) = store();
    let file = std::fs::File::create(dir.path().join(paths::meta(fixture::RESOLVED))).unwrap();
    file.set_len(LARGEST_META + 1).unwrap();
    let refusal = records.episodes(&of("rollouts/iter-000001")).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::TooLarge);
}

#[test]
fn turns_come_in_pages_that_end_at_the_last_one() {
    let (dir, records) = store();
    let path = "rollouts/iter-000001/psf__requests-1__g0__i3";
    for number in 1..20 {
        let turn = serde_json::to_vec(&fixture::turn(number, "true", "")).unwrap();
        std::fs::write(dir.path().join(paths::turn(path, number)), turn).unwrap();
    }
    let page = |from: u32| {
        records
            .turns(&TurnsOf {
                path: path.into(),
                from,
            })
            .unwrap()
    };
    let (first, last) = (page(0), page(16));
    assert_eq!((first.turns.len(), first.next), (TURNS_A_PAGE, Some(16)));
    assert_eq!((last.turns.len(), last.next), (4, None));
}

#[test]
fn turns_of_an_ended_episode_come_from_its_record_and_rows() {
    let dir = tempfile::tempdir().unwrap();
    let mut turns = vec![fixture::look_turn()];
    for number in 1..20 {
        turns.push(TurnRecord {
            prompt_length: 3 + 3 * number as usize,
            ..fixture::turn(number, "true", "")
        });
    }
    let mut meta = fixture::episode("a", 0, Outcome::Resolved).meta;
    meta.key.scope = EpisodeScope::Iteration { iteration: 1 };
    let path = meta.key.dir(1);
    fixture::write_ended(dir.path(), &fixture::ended(&meta, &turns));
    let records = Records::open(dir.path()).unwrap();
    let page = |from| {
        let path = path.clone();
        records.turns(&TurnsOf { path, from }).unwrap()
    };
    let (first, last) = (page(0), page(16));
    assert_eq!((first.turns.len(), first.next), (TURNS_A_PAGE, Some(16)));
    assert_eq!((last.turns.len(), last.next), (4, None));
    assert_eq!([first.turns, last.turns].concat(), turns);
    let told = records.episode(&path).unwrap().told.unwrap();
    assert_eq!((told.prompt_length, told.tokens, told.messages.len()), (3, 63, 40));
}

#[test]
fn votes_come_with_their_turns_and_bound_the_page() {
    let (dir, records) = store();
    fixture::write_rewards(dir.path());
    let page = |from| {
        let path = fixture::RESOLVED.to_owned();
        records.turns(&TurnsOf { path, from }).unwrap()
    };
    let turns = |page: &TurnPage| {
        let votes = page.judged.iter().map(|judged| judged.turn).collect::<Vec<_>>();
        (page.turns.len(), votes, page.next)
    };
    assert_eq!(turns(&page(0)), (2, vec![0, 1], None));
    // A judge with long texts: each turn's votes fill a page.
    for turn in 0..2 {
        let file = dir.path().join(paths::judged(fixture::RESOLVED, turn));
        let mut judged: JudgedTurn = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        judged.votes[0].text = "x".repeat(TURN_BYTES_A_PAGE as usize);
        std::fs::write(file, serde_json::to_vec(&judged).unwrap()).unwrap();
    }
    assert_eq!(turns(&page(0)), (1, vec![0], Some(1)));
    assert_eq!(turns(&page(1)), (1, vec![1], None));
}

#[test]
fn the_rule_of_a_reward_is_that_of_the_episodes_own_run() {
    let (dir, records) = store();
    assert_eq!(records.episode(fixture::RESOLVED).unwrap().worth, None);
    fixture::write_rewards(dir.path());
    let first = dir.path().join(paths::journal_entry(1));
    let entry = std::fs::read_to_string(&first).unwrap();
    std::fs::write(
        dir.path().join(paths::journal_entry(2)),
        entry.replace("\"uid\"", "\"uid-2\"").replace("0.05", "0.5"),
    )
    .unwrap();
    let worth = records.episode(fixture::RESOLVED).unwrap().worth.unwrap();
    assert!((worth.parts.by_rule() - 1.38).abs() < 1e-9, "{worth:?}");
    assert_eq!(worth.parts.shaped.as_ref().unwrap().turns.count, 2);
    std::fs::rename(first, dir.path().join("journal/0000000003.json")).unwrap();
    let later = records.episode(fixture::RESOLVED).unwrap().worth.unwrap();
    assert_eq!(later.parts, worth.parts);
}

#[test]
fn a_record_too_large_to_read_is_refused_and_a_long_patch_cut() {
    let (dir, records) = store();
    let path = "rollouts/iter-000001/psf__requests-1__g0__i0";
    std::fs::write(dir.path().join(paths::patch(path)), vec![b'x'; (1 << 20) + 7]).unwrap();
    let view = records.episode(path).unwrap();
    assert_eq!((view.patch.unwrap().len(), view.patch_omitted), (1 << 20, 7));
    let file = std::fs::File::create(dir.path().join(paths::trajectory(path))).unwrap();
    file.set_len(LARGEST_RECORD + 1).unwrap();
    assert_eq!(records.episode(path).unwrap_err().code, RefusalCode::TooLarge);
}

#[test]
fn a_path_that_leaves_the_episodes_is_refused_before_any_file_is_touched() {
    let (_dir, records) = store();
    for path in [
        "journal/0000000001.json",
        "rollouts/iter-000001",
        "rollouts/iter-000001/..",
        "rollouts/iter-1/x",
        "rollouts/../journal/x",
        "evaluations/../rollouts/iter-000001",
        "/etc/passwd",
        "",
    ] {
        assert_eq!(records.episode(path).unwrap_err().code, RefusalCode::BadPath, "{path}");
        assert_eq!(
            records
                .turns(&TurnsOf {
                    path: path.into(),
                    from: 0
                })
                .unwrap_err()
                .code,
            RefusalCode::BadPath,
            "{path}"
        );
    }
    assert_eq!(
        records.episodes(&of("weights/a-v1")).unwrap_err().code,
        RefusalCode::BadPath
    );
}

proptest! {
    #[test]
    fn only_paths_that_a_store_writes_are_taken(path in "[a-z0-9./_-]{0,40}|(rollouts|evaluations)/[a-z0-9./_-]{0,30}") {
        if let Some((scope, name)) = paths::parse_episode(&path) {
            prop_assert_eq!(format!("{}/{name}", paths::scope(&scope)), path.clone());
            prop_assert!(path.split('/').all(paths::is_plain_name));
        }
    }

    #[test]
    fn every_scope_is_found_again_by_its_path(iteration in 0u32.., set in "[a-z][a-z0-9-]{0,20}", step in 0u32..) {
        let weights = paths::weights_version("l1", step);
        for scope in [EpisodeScope::Iteration { iteration }, EpisodeScope::Evaluation { set: set.clone(), weights: weights.clone() }] {
            prop_assert_eq!(paths::parse_scope(&paths::scope(&scope)), Some(scope));
        }
    }
}

#[test]
fn a_journal_is_read_page_by_page_from_the_last_number_that_the_reader_has() {
    let (dir, records) = store();
    assert_eq!(records.entries(&EntriesOf::default()).unwrap(), EntryPage::default());
    fixture::write_journal(dir.path());
    let whole = records.entries(&EntriesOf::default()).unwrap();
    assert_eq!((whole.entries.len(), whole.after, whole.more), (14, 14, false));
    let rest = records.entries(&EntriesOf { after: 12 }).unwrap();
    assert_eq!(rest.entries, whole.entries[12..]);
    let none = records.entries(&EntriesOf { after: 14 }).unwrap();
    assert_eq!((none.entries.len(), none.after), (0, 14));
}

#[test]
fn a_truncated_entry_is_left_out_and_the_page_continues_after_it() {
    let (dir, records) = store();
    fixture::write_journal(dir.path());
    std::fs::write(dir.path().join(paths::journal_entry(3)), "{\"schema\":3,").unwrap();
    let whole = records.entries(&EntriesOf::default()).unwrap();
    let numbers: Vec<u64> = whole.entries.iter().map(|entry| entry.sequence).collect();
    assert_eq!((numbers.len(), numbers[2], whole.after), (13, 4, 14));
}

#[test]
fn a_damaged_file_of_metrics_is_named_and_hides_no_other_one() {
    let (dir, records) = store();
    fixture::write_journal(dir.path());
    let damaged = dir.path().join(paths::trainer_metrics(2));
    std::fs::write(&damaged, "{\"step\": ").unwrap();
    let page = records.metrics(&MetricsOf::default()).unwrap();
    assert_eq!((page.iterations.len(), page.steps.len(), page.more), (1, 1, false));
    assert!(
        page.damaged[0].contains("metrics/trainer/000002.json"),
        "{:?}",
        page.damaged
    );
}

#[test]
fn metrics_after_a_number_are_read_also_if_the_first_is_not_number_one() {
    let (dir, records) = store();
    fixture::write_journal(dir.path());
    let metrics = dir.path().join(paths::trainer_metrics(1));
    std::fs::rename(&metrics, metrics.with_file_name("000051.json")).unwrap();
    let page = records.metrics(&MetricsOf::default()).unwrap();
    assert_eq!((page.iterations.len(), page.steps.len(), page.more), (1, 1, false));
    let wanted = MetricsOf {
        iterations_after: 1,
        steps_after: 50,
    };
    let page = records.metrics(&wanted).unwrap();
    assert_eq!((page.iterations.len(), page.steps.len()), (0, 1));
}
