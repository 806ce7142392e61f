use super::*;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::get;
use std::convert::Infallible;

#[tokio::test]
async fn a_body_is_read_up_to_its_limit_and_one_without_an_end_is_given_up() {
    let endless = || async {
        let piece = Ok::<_, Infallible>(Bytes::from_static(&[b'x'; 1024]));
        Body::from_stream(futures::stream::repeat(piece))
    };
    let app = Router::new()
        .route("/short", get(|| async { "1234" }))
        .route("/endless", get(endless));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let client = Client::builder().no_proxy().build().unwrap();
    for (path, most, wanted) in [
        ("short", 4, Some(b"1234".to_vec())),
        ("short", 3, None),
        ("endless", 1 << 20, None),
    ] {
        let answer = client.get(format!("{url}/{path}")).send().await.unwrap();
        assert_eq!(body(answer, most).await.unwrap(), wanted, "{path} {most}");
    }
}

#[test]
fn a_shown_url_has_neither_user_nor_password_nor_query() {
    for (url, wanted) in [
        ("http://mlflow.team.svc:5000", "http://mlflow.team.svc:5000"),
        ("http://mlflow.team.svc:5000/", "http://mlflow.team.svc:5000"),
        ("https://user:pass@example.com/base", "https://example.com/base"),
        ("https://token@example.com/reward?key=abc", "https://example.com/reward"),
        ("https://user:pa ss@[", "a URL that cannot be read"),
    ] {
        assert_eq!(shown(url), wanted, "{url}");
    }
}
