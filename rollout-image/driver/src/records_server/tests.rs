use super::*;
use async_trait::async_trait;
use grpo_records::look::files::FilePage;
use grpo_records::look::{Contents, EpisodePage, EpisodeView, TurnPage};
use grpo_records::{Store, StoreError, fixture};
use object_store::ObjectStore;
use serde_json::json;
use std::sync::Arc;

const EPISODE: &str = "rollouts/iter-000001/psf__requests-1__g0__i0";

async fn opened() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    fixture::write_store(dir.path());
    let url = served(Records::open(dir.path()).unwrap()).await;
    (dir, url)
}

async fn served(records: Records) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = router(records);
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    url
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

/// The answer to a request for many files.
async fn posted(url: &str, body: impl Into<reqwest::Body>) -> reqwest::Result<(u16, String)> {
    let request = reqwest::Client::new().post(format!("{url}{}", routes::BULK));
    let answer = request
        .header("content-type", "application/json")
        .body(body)
        .send()
        .await?;
    Ok((answer.status().as_u16(), answer.text().await?))
}

#[tokio::test]
async fn many_files_come_in_one_answer_and_one_that_is_gone_is_named() {
    let (dir, url) = opened().await;
    let file = format!("{EPISODE}/meta.json");
    let there = std::fs::read_to_string(dir.path().join(&file)).unwrap();
    let wanted = json!({"files": [{"path": file}, {"path": "tasks/none.json"}, {"path": file, "from": 1, "to": 3}]});
    let (status, text) = posted(&url, wanted.to_string()).await.unwrap();
    let line = |bytes: usize| format!(r#"{{"file":{{"path":"{file}","bytes":{bytes}}}}}"#);
    let gone = format!(r#"{there}{{"gone":"tasks/none.json"}}"#);
    let expected = [line(there.len()), gone, line(2), there[1..3].to_owned()].join("\n");
    assert_eq!((status, text), (200, expected));
}

#[tokio::test]
async fn requests_for_many_files_have_limits_which_the_server_tells() {
    let (_dir, url) = opened().await;
    let (status, limits) = asked(&url, routes::BULK).await;
    assert_eq!((status, limits), (200, json!({"files": 1000, "pathBytes": 1024})));
    let of = |paths: Vec<&str>| {
        let files: Vec<_> = paths.iter().map(|path| json!({"path": path})).collect();
        json!({"files": files}).to_string()
    };
    let long = format!("tasks/{}", "x/".repeat(512));
    for (body, status, code) in [
        (of(vec!["tasks/none.json"; 1001]), 413, "TooLarge"),
        (" ".repeat(bulk::LONGEST_REQUEST + 1), 413, "TooLarge"),
        (of(vec!["tasks/none.json", &long]), 400, "BadPath"),
        (of(vec!["tasks/none.json", "tasks/../checkpoints/x"]), 400, "BadPath"),
        (of(vec!["/etc/passwd"]), 400, "BadPath"),
        ("{\"files\": 3}".to_owned(), 400, "BadPath"),
    ] {
        let (answered, text) = posted(&url, body).await.unwrap();
        let refusal: Refusal = serde_json::from_str(&text).unwrap();
        assert_eq!((answered, json!(refusal.code)), (status, json!(code)), "{text}");
    }
}

/// Each file is shorter than its length says.
#[derive(Debug)]
struct Shorter(RunStore);

#[async_trait]
impl Store for Shorter {
    fn objects(&self) -> &dyn ObjectStore {
        self.0.objects()
    }

    fn location(&self) -> String {
        self.0.location()
    }

    async fn length(&self, path: &str) -> Result<Option<u64>, StoreError> {
        Ok(self.0.length(path).await?.map(|bytes| bytes + 1))
    }
}

#[tokio::test]
async fn a_file_that_becomes_shorter_breaks_the_answer_off() {
    let dir = tempfile::tempdir().unwrap();
    fixture::write_store(dir.path());
    let store: Arc<dyn Store> = Arc::new(Shorter(RunStore::existing(dir.path()).unwrap()));
    let url = served(Records::of(RunStore::from(store))).await;
    let wanted = json!({"files": [{"path": format!("{EPISODE}/meta.json")}]}).to_string();
    let answer = posted(&url, wanted).await;
    assert!(answer.is_err(), "{answer:?}");
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
