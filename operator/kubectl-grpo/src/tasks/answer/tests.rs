use super::*;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::post;
use grpo_contracts::RunConfig;
use grpo_crds::GrpoRun;
use serde_json::{Value, json};

fn question() -> TasksQuestion {
    let run = json!({
        "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun", "metadata": {"name": "demo", "namespace": "team"},
        "spec": {
            "model": {"image": {"reference": "m"}}, "tasks": {}, "agent": {"bash": {}},
            "inference": {"poolRef": {"name": "p"}}, "sandboxes": {"poolRef": {"name": "p"}},
            "store": {"persistentVolumeClaim": {"claimName": "runs"}},
        },
    });
    TasksQuestion {
        config: RunConfig::of(&serde_json::from_value::<GrpoRun>(run).unwrap()),
        sets: vec!["train".into()],
    }
}

/// Asks a server that answers this text in pieces of so many bytes.
async fn asked(lines: &[Value], size: usize) -> (Result<Vec<TaskSet>, String>, Vec<String>) {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let answer = move |body: Bytes| async move {
        let asked: TasksQuestion = serde_json::from_slice(&body).unwrap();
        assert_eq!(asked, question());
        let pieces: Vec<_> = text.as_bytes().chunks(size).map(Bytes::copy_from_slice).collect();
        Body::from_stream(futures::stream::iter(pieces.into_iter().map(Ok::<_, std::io::Error>)))
    };
    let router = Router::new().route(ROUTE, post(answer));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let mut connection = PodConnection::over("demo-tasks-x", stream).await.unwrap();
    let mut said = Vec::new();
    let sets = ask(&mut connection, &question(), |words| said.push(words.to_owned())).await;
    (sets.map_err(|error| error.to_string()), said)
}

fn set(tasks: usize) -> Value {
    json!({"set": {"set": "train", "format": "Auto", "rows": {"SweBench": 2}, "tasks": tasks, "skipped": []}})
}

fn row(id: &str) -> Value {
    json!({"row": {"instance_id": id, "image": "i:1"}})
}

#[tokio::test]
async fn sets_and_rows_are_gathered_whatever_pieces_they_come_in() {
    let lines = [
        json!({"progress": "Reading"}),
        set(2),
        row("a"),
        row("b"),
        json!("done"),
    ];
    for size in [1, 7, 64, 4096] {
        let (sets, said) = asked(&lines, size).await;
        let sets = sets.unwrap();
        assert_eq!((sets.len(), sets[0].rows.as_ref().unwrap().len()), (1, 2), "{size}");
        assert_eq!(said, ["Reading"]);
    }
}

#[tokio::test]
async fn an_answer_that_is_cut_or_says_another_number_is_no_answer() {
    for (lines, part) in [
        (vec![set(2), row("a"), row("b")], "it ended in the middle"),
        (
            vec![set(2), row("a"), json!("done")],
            "tasks.train has other than 2 rows",
        ),
        (vec![row("a"), json!("done")], "a row came before its set"),
        (vec![json!({"other": 1})], "a line cannot be read"),
    ] {
        let error = asked(&lines, 64).await.0.unwrap_err();
        assert!(error.contains(part) && error.contains("--reader-image"), "{error}");
    }
}

#[tokio::test]
async fn what_would_end_the_run_is_said_with_its_reason() {
    let fault = json!({"fault": {"reason": "NoTasks", "message": "tasks.train: no row"}});
    let error = asked(&[fault], 64).await.0.unwrap_err();
    assert_eq!(error, "a run of this spec would end with NoTasks: tasks.train: no row");
}
