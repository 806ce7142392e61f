use super::super::viewed::Place;
use super::*;
use grpo_records::fixture;

#[tokio::test]
async fn a_bundle_has_the_page_and_every_view() {
    let store = tempfile::tempdir().unwrap();
    fixture::write_store(store.path());
    fixture::write_journal(store.path());
    // One episode is damaged.
    let damaged = store
        .path()
        .join("evaluations/heldout/a-v0/psf__requests-1__g0__i0/traj.json");
    std::fs::write(damaged, "{\"schema\":3}").unwrap();
    let run = Arc::new(Viewed::open(Place::Folder(store.path().to_owned())).await.unwrap());
    run.catch_up().await.unwrap();
    let dest = tempfile::tempdir().unwrap();
    // The run, two scopes with a group each, five episodes with their tokens, one task.
    let written = write(&[run], dest.path()).await.unwrap();
    assert_eq!((written.views, written.failed), (1 + 4 + 10 + 1, 3));
    let page = std::fs::read_to_string(dest.path().join("index.html")).unwrap();
    assert!(page.contains("data/runs.js"));
    for (key, part) in [
        ("runs", "\"bundle\":true"),
        ("0/run", "\"name\":\"demo\""),
        ("0/group/rollouts/iter-000001/0", "\"samples\":["),
        (
            "0/tokens/rollouts/iter-000001/psf__requests-1__g0__i0",
            "\"logprobs\":[",
        ),
    ] {
        let script = std::fs::read_to_string(dest.path().join(format!("data/{key}.js"))).unwrap();
        assert!(
            script.starts_with(&format!("(window.grpoData??={{}})[\"{key}\"]=")),
            "{key}"
        );
        assert!(script.contains(part), "{key}: {script}");
    }
}
