//! The identity that a cluster gives a pod: variables and a token file from a cloud's webhook, and a service that
//! exchanges the token for keys. The service and the bucket are simulated.

use super::{open, source};
use crate::Credentials;
use crate::played::{ACCESS_KEY, PlayedBucket};
use axum::Router;
use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use object_store::ObjectStoreExt;
use object_store::path::Path;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;

const TOKEN: &str = "the pod's token";

/// Method and path, `Authorization`, body.
type Asked = (String, String, String);

/// A service that gives the same answer to every request, and the requests that it received.
async fn service(answer: impl Fn() -> Response + Clone + Send + Sync + 'static) -> (String, Arc<Mutex<Vec<Asked>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = |State(asked): State<Arc<Mutex<Vec<Asked>>>>, request: Request| async move {
        let what = format!("{} {}", request.method(), request.uri().path());
        let signed = request.headers().get(header::AUTHORIZATION);
        let signed = signed.map_or_else(String::new, |signed| signed.to_str().unwrap().to_owned());
        let body = to_bytes(request.into_body(), 1 << 16).await.unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        asked.lock().unwrap().push((what, signed, body));
        answer()
    };
    let router = Router::new().fallback(heard).with_state(asked.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (at, asked)
}

fn token_file() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), TOKEN).unwrap();
    file
}

#[tokio::test]
async fn a_pods_identity_of_eks_reads_a_bucket() {
    let bucket = PlayedBucket::start("models").await.unwrap();
    bucket.put("qwen/config.json", "{}");
    let keys = format!(
        r#"{{"AccessKeyId": "{ACCESS_KEY}", "SecretAccessKey": "s", "Token": "t", "Expiration": "2099-01-01T00:00:00Z"}}"#
    );
    let (agent, asked) = service(move || keys.clone().into_response()).await;
    let token = token_file();
    let injected = Credentials::from([
        (
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            format!("{agent}/v1/credentials").as_str(),
        ),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token.path().to_str().unwrap()),
        ("AWS_REGION", "eu-central-1"),
    ]);
    let opened = open(&bucket.source("qwen"), &injected).await.unwrap();
    let found = opened.objects.get(&Path::from("qwen/config.json")).await.unwrap();
    assert_eq!(found.bytes().await.unwrap(), "{}");
    let asked = asked.lock().unwrap().clone();
    assert_eq!(
        asked,
        [("GET /v1/credentials".to_owned(), TOKEN.to_owned(), String::new())]
    );
}

/// Azure's webhook sets the authority with a final slash.
#[tokio::test]
async fn a_workloads_identity_of_azure_reads_a_bucket() {
    let given = r#"{"access_token": "for blobs", "expires_in": 3600, "token_type": "Bearer"}"#;
    let (authority, asked) = service(move || given.into_response()).await;
    let blob = || {
        let mut head = HeaderMap::new();
        head.insert(header::ETAG, "\"1\"".parse().unwrap());
        head.insert(header::LAST_MODIFIED, "Thu, 01 Jan 2026 00:00:00 GMT".parse().unwrap());
        (head, Bytes::from_static(b"{}")).into_response()
    };
    let (blobs, read) = service(blob).await;
    let token = token_file();
    let injected = Credentials::from([
        ("AZURE_CLIENT_ID", "client"),
        ("AZURE_TENANT_ID", "tenant"),
        ("AZURE_FEDERATED_TOKEN_FILE", token.path().to_str().unwrap()),
        ("AZURE_AUTHORITY_HOST", format!("{authority}/").as_str()),
        ("AZURE_STORAGE_ACCOUNT_NAME", "team"),
    ]);
    let opened = open(&source("az://models/qwen", Some(&blobs)), &injected)
        .await
        .unwrap();
    let found = opened.objects.get(&Path::from("qwen/config.json")).await.unwrap();
    assert_eq!(found.bytes().await.unwrap(), "{}");
    let read = read.lock().unwrap().clone();
    let wanted = (
        "GET /models/qwen/config.json".to_owned(),
        "Bearer for blobs".to_owned(),
        String::new(),
    );
    assert_eq!(read, [wanted]);
    let asked = asked.lock().unwrap().clone();
    let [(what, _, body)] = asked.as_slice() else {
        panic!("asked {asked:?}");
    };
    assert_eq!(what, "POST /tenant/oauth2/v2.0/token");
    assert!(
        body.contains("client_id=client") && body.contains("client_assertion=the+pod%27s+token"),
        "{body}"
    );
}
