//! The guarantees of a [`Store`] as tests; each takes an empty store. [`store_guarantees`](crate::store_guarantees)
//! names all of them, so that a backend's tests run every one.
#![allow(clippy::unwrap_used, missing_docs)]

use super::*;
use crate::claim::{Claim, ClaimError};

/// Passes the names of all guarantees to a macro.
#[macro_export]
macro_rules! store_guarantees {
    ($each:ident) => {
        $each! {
            a_name_is_created_once_and_the_second_writer_learns_it,
            of_many_who_create_a_name_one_wins_and_its_bytes_stay,
            a_replaced_file_is_the_old_or_the_new_one_to_every_reader,
            an_upload_is_there_when_it_is_finished_and_never_was_when_it_is_dropped,
            an_upload_of_nothing_is_an_empty_file,
            additions_follow_each_other,
            a_file_that_was_renamed_is_gone_from_its_old_name,
            of_two_who_move_a_file_one_wins,
            ranges_and_listings_see_what_was_written,
            a_listing_continues_behind_a_path_and_ends_after_enough_files,
            a_checksum_is_that_of_all_bytes,
            what_is_not_there_is_missing_and_no_error_to_delete,
            of_two_who_delete_at_once_neither_fails,
            a_folder_goes_with_everything_below_it,
            readers_of_paths_get_the_bytes_as_a_file,
            a_stream_has_the_bytes_of_its_range,
            of_many_names_every_one_is_listed,
            a_withdrawn_claim_writes_nothing_wherever_it_was,
            of_a_writer_and_a_withdrawal_at_once_one_wins,
        }
    };
}

pub async fn a_name_is_created_once_and_the_second_writer_learns_it(store: RunStore) {
    let first = store.create_bytes("a/b.txt", "one").await.unwrap();
    let sha256 = sha256_hex(b"one");
    assert_eq!(first, Created::Written { sha256 });
    assert_eq!(store.create_bytes("a/b.txt", "two").await.unwrap(), Created::Existed);
    assert_eq!(store.bytes("a/b.txt").await.unwrap(), "one");
}

pub async fn of_many_who_create_a_name_one_wins_and_its_bytes_stay(store: RunStore) {
    let writers = (0..16).map(|writer| {
        let store = store.clone();
        tokio::spawn(async move { (writer, store.create_bytes("lock", format!("{writer}")).await.unwrap()) })
    });
    let ended = futures::future::join_all(writers).await;
    let won = ended.into_iter().map(Result::unwrap);
    let won: Vec<i32> = won
        .filter(|(_, created)| *created != Created::Existed)
        .map(|(writer, _)| writer)
        .collect();
    assert_eq!(won.len(), 1);
    assert_eq!(store.bytes("lock").await.unwrap(), won[0].to_string());
}

pub async fn a_replaced_file_is_the_old_or_the_new_one_to_every_reader(store: RunStore) {
    let of = |n: u8| Bytes::from(vec![n; 100_000]);
    store.replace("f", of(0)).await.unwrap();
    let reader = {
        let store = store.clone();
        tokio::spawn(async move {
            loop {
                let bytes = store.bytes("f").await.unwrap();
                assert!(bytes.len() == 100_000 && bytes.iter().all(|b| *b == bytes[0]));
                if bytes[0] == 20 {
                    return;
                }
            }
        })
    };
    for n in 1..=20 {
        store.replace("f", of(n)).await.unwrap();
    }
    reader.await.unwrap();
}

pub async fn an_upload_is_there_when_it_is_finished_and_never_was_when_it_is_dropped(store: RunStore) {
    // More than two parts, in pieces that do not fill a part evenly.
    let bytes: Vec<u8> = (0..20_000_003_u32).map(|n| n as u8).collect();
    let mut upload = store.upload("big").await.unwrap();
    for piece in bytes.chunks(3_000_001) {
        upload.write(piece).await.unwrap();
        assert_eq!(store.length("big").await.unwrap(), None);
    }
    let uploaded = upload.finish().await.unwrap();
    assert_eq!(
        (uploaded.bytes, uploaded.sha256),
        (bytes.len() as u64, sha256_hex(&bytes))
    );
    assert_eq!(store.bytes("big").await.unwrap(), bytes);

    let mut dropped = store.upload("big").await.unwrap();
    dropped.write(&bytes).await.unwrap();
    drop(dropped);
    assert_eq!(store.bytes("big").await.unwrap(), bytes);
    assert_eq!(store.files_below("").await.unwrap(), ["big"]);
    // A second upload replaces the file of that name.
    let mut other = store.upload("big").await.unwrap();
    other.write(b"other").await.unwrap();
    other.finish().await.unwrap();
    assert_eq!(store.bytes("big").await.unwrap(), "other");
}

pub async fn an_upload_of_nothing_is_an_empty_file(store: RunStore) {
    let uploaded = store.upload("none").await.unwrap().finish().await.unwrap();
    assert_eq!((uploaded.bytes, uploaded.sha256), (0, sha256_hex(b"")));
    assert_eq!(store.length("none").await.unwrap(), Some(0));
}

pub async fn additions_follow_each_other(store: RunStore) {
    for addition in ["one ", "two ", "three"] {
        store.append("logs/a", addition.into()).await.unwrap();
    }
    assert_eq!(store.bytes("logs/a").await.unwrap(), "one two three");
}

pub async fn a_file_that_was_renamed_is_gone_from_its_old_name(store: RunStore) {
    store.create_bytes("staged/new", "new").await.unwrap();
    store.create_bytes("there", "old").await.unwrap();
    store.rename("staged/new", "there").await.unwrap();
    assert_eq!(store.bytes("there").await.unwrap(), "new");
    assert!(!store.exists("staged/new").await.unwrap());
    store.rename("there", "deep/er/there").await.unwrap();
    assert_eq!(store.files_below("").await.unwrap(), ["deep/er/there"]);
}

pub async fn of_two_who_move_a_file_one_wins(store: RunStore) {
    store.create_bytes("staged", "x").await.unwrap();
    store.delete("staged").await.unwrap();
    let lost = store.rename("staged", "named").await;
    assert!(matches!(lost, Err(StoreError::Missing { path }) if path == "staged"));
    assert!(!store.exists("named").await.unwrap());
}

pub async fn ranges_and_listings_see_what_was_written(store: RunStore) {
    for path in ["x/2/c", "x/1/a", "x/b"] {
        store.create_bytes(path, "0123456789").await.unwrap();
    }
    assert_eq!(store.range("x/b", 2..5).await.unwrap(), "234");
    assert_eq!(store.range("x/b", 8..50).await.unwrap(), "89");
    assert_eq!(store.files_below("x").await.unwrap(), ["x/1/a", "x/2/c", "x/b"]);
    assert!(store.list("x").await.unwrap().iter().all(|file| file.bytes == 10));
    let (files, folders) = store.names_in("x").await.unwrap();
    assert_eq!(
        (files, folders),
        (vec!["b".to_owned()], vec!["1".to_owned(), "2".to_owned()])
    );
    assert_eq!(store.length("x/b").await.unwrap(), Some(10));
    assert_eq!(store.length("x/none").await.unwrap(), None);
    assert_eq!(store.names("y").await.unwrap(), Names::default());
    assert_eq!(store.list("y").await.unwrap(), []);
}

pub async fn a_listing_continues_behind_a_path_and_ends_after_enough_files(store: RunStore) {
    let all = ["x/1-a", "x/1/a", "x/1/b/c", "x/1/d", "x/2", "x/3/a", "y/1"];
    for path in all {
        store.create_bytes(path, "12").await.unwrap();
    }
    let places = ["", "w", "x", "x/1", "x/1/b", "x/1/b/c", "x/1/z", "x/2", "x/3/a", "z"];
    for after in std::iter::once(None).chain(places.map(Some)) {
        for most in 1..=7 {
            let found = store.list_after("x", after, most).await.unwrap();
            assert!(found.iter().all(|file| file.bytes == 2));
            let found: Vec<String> = found.into_iter().map(|file| file.path).collect();
            let expected = all[..6].iter().filter(|path| after.is_none_or(|after| **path > after));
            let expected: Vec<&str> = expected.copied().take(most).collect();
            assert_eq!(found, expected, "{most} after {after:?}");
        }
    }
    assert_eq!(store.list_after("none", None, 1).await.unwrap(), []);
}

pub async fn a_checksum_is_that_of_all_bytes(store: RunStore) {
    let bytes: Vec<u8> = (0..2 * PIECE + 5).map(|n| n as u8).collect();
    let sha256 = sha256_hex(&bytes);
    store.create_bytes("big", bytes).await.unwrap();
    assert_eq!(store.checksum("big").await.unwrap(), sha256);
    store.create_bytes("none", "").await.unwrap();
    assert_eq!(store.checksum("none").await.unwrap(), sha256_hex(b""));
}

pub async fn what_is_not_there_is_missing_and_no_error_to_delete(store: RunStore) {
    let missing = |error: StoreError| matches!(error, StoreError::Missing { path } if path == "no/thing");
    assert!(missing(store.bytes("no/thing").await.unwrap_err()));
    assert!(missing(store.range("no/thing", 0..1).await.unwrap_err()));
    assert!(missing(store.checksum("no/thing").await.unwrap_err()));
    assert!(missing(store.local_copy("no/thing").await.unwrap_err()));
    store.delete("no/thing").await.unwrap();
    store.delete_folder("no").await.unwrap();
    store.create_bytes("no/thing", "x").await.unwrap();
    store.delete("no/thing").await.unwrap();
    assert!(!store.exists("no/thing").await.unwrap());
}

/// Only a server can fail this: some answer the second of two requests with an error.
pub async fn of_two_who_delete_at_once_neither_fails(store: RunStore) {
    for round in 0..16 {
        for name in ["one", "two"] {
            store.create_bytes(&format!("{round}/{name}"), "x").await.unwrap();
        }
        let (file, folder) = (format!("{round}/one"), format!("{round}"));
        let (first, second) = tokio::join!(store.delete(&file), store.delete(&file));
        first.and(second).unwrap();
        let (first, second) = tokio::join!(store.delete_folder(&folder), store.delete_folder(&folder));
        first.and(second).unwrap();
        assert_eq!(store.files_below(&folder).await.unwrap(), [""; 0]);
    }
}

pub async fn a_folder_goes_with_everything_below_it(store: RunStore) {
    for path in ["a/1", "a/b/2", "a-1", "ab/3"] {
        store.create_bytes(path, "x").await.unwrap();
    }
    store.delete_folder("a").await.unwrap();
    assert_eq!(store.files_below("").await.unwrap(), ["a-1", "ab/3"]);
    assert_eq!(store.names("").await.unwrap().folders, ["ab"]);
}

pub async fn readers_of_paths_get_the_bytes_as_a_file(store: RunStore) {
    store.create_bytes("grade.log", "1 passed").await.unwrap();
    let file = store.local_copy("grade.log").await.unwrap();
    assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "1 passed");
}

pub async fn a_stream_has_the_bytes_of_its_range(store: RunStore) {
    let bytes: Vec<u8> = (0..2 * PIECE + 5).map(|n| n as u8).collect();
    store.create_bytes("big", bytes.clone()).await.unwrap();
    for range in [0..bytes.len() as u64, 3..PIECE + 4, 7..7] {
        let pieces: Vec<Bytes> = store.stream("big", range.clone()).try_collect().await.unwrap();
        assert!(pieces.concat() == bytes[range.start as usize..range.end as usize]);
    }
}

pub async fn of_many_names_every_one_is_listed(store: RunStore) {
    use futures::StreamExt;
    // More files than a server lists at a time; GRPO_STORE_OBJECTS sets the number for a long test.
    let count = std::env::var("GRPO_STORE_OBJECTS").map_or(1_050, |count| count.parse().unwrap());
    let all: Vec<String> = (0..count).map(|n| format!("many/{n:06}")).collect();
    let written = futures::stream::iter(&all).map(|path| store.create_bytes(path, "x"));
    let written: Vec<Created> = written.buffer_unordered(16).try_collect().await.unwrap();
    assert!(!written.contains(&Created::Existed));
    assert_eq!(store.files_below("many").await.unwrap(), all);
    assert_eq!(store.names_in("many").await.unwrap().0.len(), all.len());
    store.delete_folder("many").await.unwrap();
    assert_eq!(store.list("").await.unwrap(), []);
}

pub async fn a_withdrawn_claim_writes_nothing_wherever_it_was(store: RunStore) {
    let old = held(&store, "uid_1_0").await;
    old.replace("there", "old".into()).await.unwrap();
    let begun = old.upload("begun").await.unwrap();
    let mut staged = old.upload("there").await.unwrap();
    staged.write(b"late").await.unwrap();
    // Withdrawn between the writer's last check and the naming.
    let named = store.stage(".staging/uid_1_0/x", "there").await;
    let mut named = named.unwrap();
    named.write(b"late").await.unwrap();
    named.arrive().await.unwrap();

    // The next attempt knows only the name.
    Claim::new(store.clone(), "uid_1_0".to_owned())
        .withdraw()
        .await
        .unwrap();
    assert_eq!(Claim::all(&store).await.unwrap(), Vec::<String>::new());
    let new = held(&store, "uid_2_0").await;
    for late in [
        old.replace("there", "late".into()).await,
        old.upload("there").await.map(|_| ()),
        begun.finish().await.map(|_| ()),
        staged.finish().await.map(|_| ()),
    ] {
        assert!(matches!(late, Err(ClaimError::Withdrawn { .. })), "{late:?}");
    }
    assert!(named.name(&*store).await.is_err(), "what was discarded got its name");
    assert_eq!(store.bytes("there").await.unwrap(), "old");
    assert!(!store.exists("begun").await.unwrap());
    new.replace("there", "new".into()).await.unwrap();
    assert_eq!(store.bytes("there").await.unwrap(), "new");
    // No staged file remains.
    let left = store.files_below(crate::paths::STAGING).await.unwrap();
    assert_eq!(left, [".staging/uid_2_0/claim"]);
}

/// The writer's file exists when the withdrawal returns, or never.
pub async fn of_a_writer_and_a_withdrawal_at_once_one_wins(store: RunStore) {
    for round in 0..24_u32 {
        let claim = held(&store, &format!("uid_{round}_0")).await;
        let path = format!("weights/{round}");
        let mut upload = claim.upload(&path).await.unwrap();
        upload.write(b"bytes").await.unwrap();
        let writer = tokio::spawn(upload.finish());
        // Withdraw at a different moment of the write in each round.
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(std::time::Duration::from_micros(u64::from(round) * 300)).await;
        claim.withdraw().await.unwrap();
        let there = store.exists(&path).await.unwrap();
        let wrote = writer.await.unwrap().is_ok();
        assert_eq!(store.exists(&path).await.unwrap(), there, "round {round}");
        assert!(there || !wrote, "round {round}: acknowledged and not there");
    }
    assert_eq!(Claim::all(&store).await.unwrap(), Vec::<String>::new());
}

async fn held(store: &RunStore, name: &str) -> Claim {
    let claim = Claim::new(store.clone(), name.to_owned());
    claim.take().await.unwrap();
    claim
}
