//! Downloads over real sockets from a simulated hub: the same bytes, the same commit, no partial file under a final
//! name.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use grpo_hub::played::{Content, Damage, PlayedHub, Request};
use grpo_hub::snapshot::{Progress, ensure, link};
use grpo_hub::{Hub, HubError, HubFiles, HubSettings, Pin, Repository};

const LARGE: usize = 1 << 20;

fn repository() -> Repository {
    Repository::model("owner/name")
}

fn bytes(seed: u8, count: usize) -> Vec<u8> {
    (0..count).map(|at| seed.wrapping_add((at % 251) as u8)).collect()
}

/// More files than one page of a listing.
fn files(seed: u8) -> BTreeMap<String, Vec<u8>> {
    let names = ["README.md", "config.json", "a/b/deep.json", "empty.txt"];
    let small = names
        .iter()
        .zip([40, 300, 20, 0])
        .map(|(name, size)| ((*name).to_owned(), bytes(seed, size)));
    let large = [("model.safetensors".to_owned(), bytes(seed, LARGE))];
    small.chain(large).collect()
}

fn contents(files: &BTreeMap<String, Vec<u8>>) -> BTreeMap<String, Content> {
    let content = |(path, bytes): (&String, &Vec<u8>)| {
        let held: fn(_) -> _ = if bytes.len() < LARGE {
            Content::Small
        } else {
            Content::Large
        };
        (path.clone(), held(bytes.clone().into()))
    };
    files.iter().map(content).collect()
}

fn client(played: &PlayedHub, token: Option<&str>) -> Hub {
    let settings = HubSettings {
        endpoint: Some(played.endpoint.clone()),
        token: token.map(str::to_owned),
        ca_bundle: None,
    };
    Hub::new(&settings).unwrap()
}

fn files_of<'a>(hub: &'a Hub, repository: &'a Repository) -> HubFiles<'a> {
    HubFiles { hub, repository }
}

/// Every file below a folder, with its bytes.
fn below(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(at).into_iter().flatten().flatten() {
            let path = entry.path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                    found.insert(name, fs::read(path).unwrap());
                }
            }
        }
    }
    found
}

/// Pins `main`, lists it and downloads all its files.
async fn download(hub: &Hub, cache: &Path) -> Result<BTreeMap<String, Vec<u8>>, HubError> {
    let repository = repository();
    let commit = hub.pin(&repository, None).await?;
    let files = hub.list(&repository, &commit).await?;
    let progress = Progress::default();
    let folder = ensure(&files_of(hub, &repository), &commit, &files, cache, &progress).await?;
    let (arrived, all) = progress.bytes();
    assert_eq!(arrived, all, "progress counts each byte once");
    Ok(below(&folder))
}

fn of_large(played: &PlayedHub) -> Vec<Request> {
    let of_large = |request: &Request| request.host == "files";
    played.requests().into_iter().filter(of_large).collect()
}

#[tokio::test]
async fn all_files_come_with_their_bytes_and_a_second_download_asks_for_none() {
    let (played, cache) = (PlayedHub::start().await.unwrap(), tempfile::tempdir().unwrap());
    let wanted = files(1);
    played.push(&repository(), "main", contents(&wanted));
    let hub = client(&played, None);
    assert_eq!(download(&hub, cache.path()).await.unwrap(), wanted);
    let asked = of_large(&played).len();
    assert_eq!(download(&hub, cache.path()).await.unwrap(), wanted);
    assert_eq!(of_large(&played).len(), asked);
    assert_eq!(below(&cache.path().join("models--owner--name/parts")), BTreeMap::new());
}

#[tokio::test]
async fn a_branch_that_moves_meanwhile_does_not_mix_two_commits() {
    let (played, cache) = (PlayedHub::start().await.unwrap(), tempfile::tempdir().unwrap());
    let (before, after) = (files(1), files(2));
    played.push(&repository(), "main", contents(&before));
    let hub = client(&played, None);
    let commit = hub.pin(&repository(), Some("main")).await.unwrap();
    played.push(&repository(), "main", contents(&after));
    let listed = hub.list(&repository(), &commit).await.unwrap();
    let progress = Progress::default();
    let folder = ensure(
        &files_of(&hub, &repository()),
        &commit,
        &listed,
        cache.path(),
        &progress,
    )
    .await
    .unwrap();
    assert_eq!(below(&folder), before);
    assert_eq!(download(&hub, cache.path()).await.unwrap(), after);
}

#[tokio::test]
async fn a_connection_that_is_cut_continues_at_the_byte_it_reached() {
    let (played, cache) = (PlayedHub::start().await.unwrap(), tempfile::tempdir().unwrap());
    let wanted = BTreeMap::from([("model.safetensors".to_owned(), bytes(3, LARGE))]);
    played.push(&repository(), "main", contents(&wanted));
    played.spoil_files([
        Damage::Cut(300_000),
        Damage::Status(503),
        Damage::Cut(1000),
        Damage::Status(429),
    ]);
    assert_eq!(download(&client(&played, None), cache.path()).await.unwrap(), wanted);
    let ranges: Vec<u64> = of_large(&played)
        .iter()
        .map(|request| {
            request
                .range
                .as_deref()
                .map_or(0, |range| range[6..range.len() - 1].parse().unwrap())
        })
        .collect();
    assert_eq!(ranges.len(), 5);
    assert!(
        ranges.is_sorted() && ranges[1] > 0 && ranges[4] > ranges[1],
        "{ranges:?}"
    );
}

#[tokio::test]
async fn a_server_without_ranges_sends_the_file_again() {
    let (played, cache) = (PlayedHub::start().await.unwrap(), tempfile::tempdir().unwrap());
    let wanted = BTreeMap::from([("model.safetensors".to_owned(), bytes(4, LARGE))]);
    played.push(&repository(), "main", contents(&wanted));
    played.spoil_files([Damage::Cut(300_000), Damage::IgnoreRange]);
    assert_eq!(download(&client(&played, None), cache.path()).await.unwrap(), wanted);
}

#[tokio::test]
async fn a_download_that_dies_leaves_no_file_with_a_name_and_the_next_continues_it() {
    let (played, cache) = (PlayedHub::start().await.unwrap(), tempfile::tempdir().unwrap());
    let wanted = BTreeMap::from([("model.safetensors".to_owned(), bytes(5, LARGE))]);
    played.push(&repository(), "main", contents(&wanted));
    let hub = client(&played, None);
    played.spoil_files([Damage::Cut(500_000)]);
    played.spoil_files([Damage::Status(404)]);
    download(&hub, cache.path()).await.unwrap_err();
    let folder = cache.path().join("models--owner--name");
    assert_eq!(below(&folder.join("snapshots")), BTreeMap::new());
    let left: usize = below(&folder.join("parts")).values().map(Vec::len).sum();
    assert!(left > 0 && left <= 500_000, "{left}");
    assert_eq!(download(&hub, cache.path()).await.unwrap(), wanted);
    let last = of_large(&played).pop().unwrap();
    assert_eq!(last.range, Some(format!("bytes={left}-")));
}

#[tokio::test]
async fn bytes_that_are_wrong_are_fetched_once_more_and_never_named() {
    let (played, cache) = (PlayedHub::start().await.unwrap(), tempfile::tempdir().unwrap());
    let wanted = BTreeMap::from([("model.safetensors".to_owned(), bytes(6, LARGE))]);
    played.push(&repository(), "main", contents(&wanted));
    let hub = client(&played, None);
    played.spoil_files([Damage::Spoil, Damage::Spoil]);
    let error = download(&hub, cache.path()).await.unwrap_err();
    assert!(
        matches!(&error, HubError::Corrupt { path, .. } if path == "model.safetensors"),
        "{error}"
    );
    assert_eq!(
        below(&cache.path().join("models--owner--name/snapshots")),
        BTreeMap::new()
    );
    played.spoil_files([Damage::Spoil]);
    assert_eq!(download(&hub, cache.path()).await.unwrap(), wanted);
}

#[tokio::test]
async fn a_gated_repository_needs_its_token_and_the_token_stays_with_the_hub() {
    let (played, cache) = (PlayedHub::start().await.unwrap(), tempfile::tempdir().unwrap());
    let wanted = files(7);
    played.push(&repository(), "main", contents(&wanted));
    played.gate(&repository(), "secret");
    let error = download(&client(&played, None), cache.path()).await.unwrap_err();
    assert!(
        matches!(error, HubError::Gated { .. }) && error.to_string().contains("tokenSecretRef"),
        "{error}"
    );
    assert_eq!(
        download(&client(&played, Some("secret")), cache.path()).await.unwrap(),
        wanted
    );
    assert!(of_large(&played).iter().all(|request| request.token.is_none()));
    assert!(
        played
            .requests()
            .iter()
            .any(|request| request.token.as_deref() == Some("secret"))
    );
}

#[tokio::test]
async fn what_does_not_exist_is_named() {
    let (played, cache) = (PlayedHub::start().await.unwrap(), tempfile::tempdir().unwrap());
    let hub = client(&played, None);
    let error = download(&hub, cache.path()).await.unwrap_err();
    assert!(matches!(error, HubError::NoRepository { .. }), "{error}");
    played.push(&repository(), "main", contents(&files(8)));
    let error = hub.pin(&repository(), Some("refs/pr/1")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "model owner/name has no branch, tag or commit refs/pr/1"
    );
    let away = HubSettings {
        endpoint: Some("file:///models".to_owned()),
        ..HubSettings::default()
    };
    assert!(matches!(Hub::new(&away), Err(HubError::Settings(_))));
}

#[tokio::test]
async fn a_hub_in_trouble_is_asked_again() {
    let (played, cache) = (PlayedHub::start().await.unwrap(), tempfile::tempdir().unwrap());
    let wanted = files(9);
    played.push(&repository(), "main", contents(&wanted));
    played.spoil_api([Damage::Status(502), Damage::Status(429), Damage::Status(503)]);
    assert_eq!(download(&client(&played, None), cache.path()).await.unwrap(), wanted);
    played.spoil_api([Damage::Status(400)]);
    let error = download(&client(&played, None), cache.path()).await.unwrap_err();
    assert!(matches!(error, HubError::Status { status: 400, .. }), "{error}");
}

#[tokio::test]
async fn two_that_want_the_same_files_download_them_once() {
    let (played, cache) = (PlayedHub::start().await.unwrap(), tempfile::tempdir().unwrap());
    let wanted = files(10);
    played.push(&repository(), "main", contents(&wanted));
    let (one, other) = (client(&played, None), client(&played, None));
    let (one, other) = tokio::join!(download(&one, cache.path()), download(&other, cache.path()));
    assert_eq!((one.unwrap(), other.unwrap()), (wanted.clone(), wanted));
    assert_eq!(of_large(&played).len(), 1);
}

#[tokio::test]
async fn rows_of_a_branch_whose_name_has_slashes_are_found() {
    let played = PlayedHub::start().await.unwrap();
    let dataset = Repository::dataset("owner/rows");
    let commit = played.push(&dataset, "refs/convert/parquet", contents(&files(11)));
    let hub = client(&played, None);
    let pinned = hub.pin(&dataset, Some("refs/convert/parquet")).await.unwrap();
    assert_eq!(pinned, commit);
    assert_eq!(
        hub.text(&dataset, &pinned, "config.json").await.ok(),
        String::from_utf8(bytes(11, 300)).ok()
    );
}

#[tokio::test]
async fn a_pin_written_down_by_one_process_brings_the_same_files_to_another_though_the_branch_moved() {
    let played = PlayedHub::start().await.unwrap();
    let first = files(1);
    played.push(&repository(), "main", contents(&first));
    let (hub, repository) = (client(&played, None), repository());
    let of = files_of(&hub, &repository);
    let pin = Pin::of_model(of, None).await.unwrap();
    let written = serde_json::to_string(&pin).unwrap();
    played.push(&repository, "main", contents(&files(2)));
    let (read, cache): (Pin, _) = (serde_json::from_str(&written).unwrap(), tempfile::tempdir().unwrap());
    let (current, progress) = (cache.path().join("current"), Progress::default());
    for _ in 0..2 {
        let folder = read.fetch(&of, cache.path(), &progress).await.unwrap();
        link(&folder, &current).unwrap();
        for name in ["config.json", "model.safetensors"] {
            assert_eq!(fs::read(current.join(name)).unwrap(), first[name]);
        }
    }
    let small = read.without_weights();
    assert!(small.files.iter().all(|file| file.path != "model.safetensors") && !small.files.is_empty());
}

#[test]
fn a_pin_that_leaves_its_folder_or_names_no_commit_is_not_read() {
    let pin = |commit: &str, path: &str| {
        let text =
            format!(r#"{{"commit":"{commit}","files":[{{"path":"{path}","size":1,"digest":{{"sha256":"00"}}}}]}}"#);
        serde_json::from_str::<Pin>(&text)
    };
    let commit = "0123456789012345678901234567890123456789";
    pin(commit, "a/b.json").unwrap();
    for (commit, path) in [(commit, "../b.json"), (commit, "/b.json"), ("main", "b.json")] {
        pin(commit, path).unwrap_err();
    }
}

#[tokio::test]
async fn processes_that_share_a_cache_and_a_name_take_the_same_commit_and_others_the_newest() {
    let played = PlayedHub::start().await.unwrap();
    played.push(&repository(), "main", contents(&files(1)));
    let (hub, repository, cache) = (client(&played, None), repository(), tempfile::tempdir().unwrap());
    let of = files_of(&hub, &repository);
    let agreed = async |name| {
        Pin::agreed(&of, cache.path(), name, Pin::of_model(of, None))
            .await
            .unwrap()
    };
    let first = agreed("a").await;
    played.push(&repository, "main", contents(&files(2)));
    assert_eq!(agreed("a").await, first);
    assert_ne!(agreed("b").await, first);
    let left = below(cache.path());
    assert_eq!(left.len(), 2, "{:?}", left.keys());
}
