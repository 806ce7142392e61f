use super::*;
use grpo_records::fixture;
use grpo_records::look::files::FilePage;
use grpo_records::look::{Contents, EpisodePage, EpisodeView, TurnPage};

const EPISODE: &str = "rollouts/iter-000001/psf__requests-1__g0__i0";

async fn opened() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    fixture::write_store(dir.path());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = router(Records::open(dir.path()).unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (dir, url)
}

async fn asked(url: &str, path: &str) -> (u16, serde_json::Value) {
    let answer = reqwest::get(format!("{url}{path}")).await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

#[tokio::test]
async fn contents_episodes_and_turns_are_shown_over_a_socket() {
    let (_dir, url) = opened().await;
    let (_, contents) = asked(&url, routes::CONTENTS).await;
    let contents: Contents = serde_json::from_value(contents).unwrap();
    assert_eq!(contents.scopes.len(), 2);
    let (_, page) = asked(&url, "/v1/records/episodes?scope=rollouts/iter-000001&limit=2").await;
    let page: EpisodePage = serde_json::from_value(page).unwrap();
    assert_eq!((page.episodes.len(), page.next.is_some()), (2, true));
    let (_, view) = asked(&url, &format!("/v1/records/episode?path={EPISODE}")).await;
    let view: EpisodeView = serde_json::from_value(view).unwrap();
    assert!(view.patch.unwrap().contains("+b"));
    assert_eq!(view.told.unwrap().tokens, 9);
    let (_, turns) = asked(&url, &format!("/v1/records/turns?path={EPISODE}&from=1")).await;
    let turns: TurnPage = serde_json::from_value(turns).unwrap();
    assert_eq!((turns.turns.len(), turns.next), (1, None));
}

#[tokio::test]
async fn what_is_no_episode_is_refused_with_a_code_and_words() {
    let (_dir, url) = opened().await;
    for (path, status, code) in [
        ("/v1/records/episode?path=journal/0000000001.json", 400, "BadPath"),
        ("/v1/records/episode?path=rollouts/iter-000001/%2e%2e", 400, "BadPath"),
        ("/v1/records/turns?path=rollouts/iter-000001/none", 404, "NotThere"),
        (
            "/v1/records/episodes?scope=rollouts/iter-000001&limit=many",
            400,
            "BadPath",
        ),
        ("/v1/records/episodes", 400, "BadPath"),
    ] {
        let (answered, body) = asked(&url, path).await;
        assert_eq!(
            (answered, body["code"].as_str(), body["fault"].as_str()),
            (status, Some(code), Some("Client")),
            "{path}"
        );
        assert!(
            body["message"].as_str().is_some_and(|words| !words.is_empty()),
            "{path}"
        );
    }
}

#[tokio::test]
async fn files_are_listed_and_come_as_they_are_in_the_store() {
    let (dir, url) = opened().await;
    let (_, page) = asked(&url, "/v1/records/files?folder=rollouts/iter-000001").await;
    let page: FilePage = serde_json::from_value(page).unwrap();
    assert!(page.files.len() > 5 && page.next.is_none(), "{page:?}");
    for file in page.files {
        let answer = reqwest::get(format!("{url}/v1/records/file?path={}", file.path))
            .await
            .unwrap();
        assert_eq!(answer.content_length(), Some(file.bytes));
        let there = std::fs::read(dir.path().join(&file.path)).unwrap();
        assert_eq!(answer.bytes().await.unwrap(), there);
    }
    let (status, body) = asked(&url, "/v1/records/file?path=checkpoints/a-s000001/manifest.json").await;
    assert_eq!((status, body["code"].as_str()), (400, Some("BadPath")));
}

#[tokio::test]
async fn records_cannot_be_changed_through_the_server() {
    let (_dir, url) = opened().await;
    let client = reqwest::Client::new();
    let route = format!("{url}/v1/records/episode?path={EPISODE}");
    for request in [client.put(&route), client.post(&route), client.delete(&route)] {
        assert_eq!(request.send().await.unwrap().status().as_u16(), 405);
    }
}

#[test]
fn a_store_that_is_not_there_is_named() {
    let mount = tempfile::tempdir().unwrap();
    let error = open_volume(mount.path(), "team/demo").err().unwrap().to_string();
    assert!(error.contains("team/demo"), "{error}");
    let error = open_volume(mount.path(), "../demo").err().unwrap().to_string();
    assert!(error.contains("plain relative path"), "{error}");
}
