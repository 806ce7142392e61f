use super::super::sessions::{HOLD, MOST_REQUESTS, Session};
use super::*;
use tokio::time::Instant;

const LEASE: &str = "a-1";

fn secret(session: &Session) -> String {
    session.path().trim_start_matches(SESSIONS).trim_matches('/').to_owned()
}

async fn asks(sessions: &Sessions, secret: &str, api: Api, streams: bool) -> Response {
    let mut headers = HeaderMap::new();
    headers.insert(RELAY_LEASE_HEADER, LEASE.parse().unwrap());
    let body = serde_json::json!({
        "model": "policy",
        "max_tokens": 9,
        "stream": streams,
        "messages": [{"role": "user", "content": "Hi."}],
    });
    ask(sessions, secret, &headers, Body::from(body.to_string()), api, false).await
}

async fn body(response: Response) -> serde_json::Value {
    let bytes = axum::body::to_bytes(response.into_body(), 1 << 16).await.unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_unknown_session_is_waited_for_before_the_client_is_told_to_ask_again() {
    for (api, kind) in [(Api::ChatCompletions, "server_error"), (Api::Messages, "api_error")] {
        let began = Instant::now();
        let response = asks(&Sessions::default(), "of an earlier driver", api, false).await;
        assert!(began.elapsed() >= HOLD);
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[RETRY_AFTER], AGAIN_AFTER);
        assert_eq!(body(response).await["error"]["type"], kind);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_reply_gets_404_only_if_its_episode_has_ended() {
    for streams in [false, true] {
        for (ends, status) in [(true, StatusCode::NOT_FOUND), (false, StatusCode::SERVICE_UNAVAILABLE)] {
            let sessions = Sessions::default();
            let mut session = sessions.open(LEASE, "policy");
            let secret = secret(&session);
            let episode = async move {
                drop(session.next().await);
                match ends {
                    true => session.over(),
                    false => drop(session),
                }
            };
            let (response, ()) = tokio::join!(asks(&sessions, &secret, Api::ChatCompletions, streams), episode);
            assert_eq!(response.status(), status, "streams: {streams}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_open_stream_breaks_off_with_an_error_if_its_driver_fails() {
    for ends in [true, false] {
        let sessions = Sessions::default();
        let mut session = sessions.open(LEASE, "policy");
        let secret = secret(&session);
        let episode = async move {
            let asked = session.next().await;
            // The stream opens after a pause.
            tokio::time::sleep(PAUSE * 2).await;
            drop(asked);
            match ends {
                true => session.over(),
                false => drop(session),
            }
        };
        let read = async {
            let response = asks(&sessions, &secret, Api::ChatCompletions, true).await;
            assert_eq!(response.status(), StatusCode::OK);
            axum::body::to_bytes(response.into_body(), 1 << 16).await
        };
        let (read, ()) = tokio::join!(read, episode);
        assert_eq!(read.is_ok(), ends, "{read:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_open_stream_of_gemini_ends_with_an_error_that_its_clients_repeat() {
    let sessions = Sessions::default();
    let mut session = sessions.open(LEASE, "policy");
    let secret = secret(&session);
    let episode = async move {
        let asked = session.next().await;
        // The stream opens after a pause.
        tokio::time::sleep(PAUSE * 2).await;
        drop(asked);
        drop(session);
    };
    let read = async {
        let mut headers = HeaderMap::new();
        headers.insert(RELAY_LEASE_HEADER, LEASE.parse().unwrap());
        let method = ModelMethod::of("policy:streamGenerateContent", Some("alt=sse"));
        let body = Body::from(r#"{"contents":[{"parts":[{"text":"Hi."}]}]}"#);
        let response = ask_by(&sessions, &secret, &headers, body, Api::GenerateContent, false, method).await;
        axum::body::to_bytes(response.into_body(), 1 << 16).await.unwrap()
    };
    let (read, ()) = tokio::join!(read, episode);
    let text = std::str::from_utf8(&read).unwrap();
    let (waits, last) = text.rsplit_once("\n\n").unwrap();
    assert!(waits.starts_with("data: {"), "{text}");
    let last: serde_json::Value = serde_json::from_str(last).unwrap();
    assert_eq!(
        last["error"],
        serde_json::json!({ "code": 503, "message": AWAY, "status": "UNAVAILABLE" })
    );
}

#[tokio::test]
async fn a_request_beyond_the_bound_is_told_when_to_ask_again() {
    let sessions = Sessions::default();
    let session = sessions.open(LEASE, "policy");
    let secret = secret(&session);
    let places = sessions.door(&secret, LEASE).unwrap().places;
    let _all = places.try_acquire_many(MOST_REQUESTS as u32).unwrap();
    let response = asks(&sessions, &secret, Api::Messages, false).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()[RETRY_AFTER], AGAIN_AFTER);
    assert_eq!(body(response).await["error"]["type"], "rate_limit_error");
}

/// A GET over HTTP that the gateway passed on: status and body.
async fn got(sessions: &Sessions, path: &str, anthropic: bool) -> (StatusCode, serde_json::Value) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = router(sessions.clone());
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut request = client
        .get(format!("http://{address}{path}"))
        .header(RELAY_LEASE_HEADER, LEASE);
    if anthropic {
        request = request.header("anthropic-version", "2023-06-01");
    }
    let response = request.send().await.unwrap();
    let status = response.status();
    let body: serde_json::Value = response.json().await.unwrap();
    server.abort();
    (status, body)
}

#[tokio::test]
async fn a_request_of_an_open_session_keeps_its_connection_while_others_open_many() {
    use grpo_auth::places::Limits;
    use grpo_auth::serve::{Bounds, serve_within};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    let sessions = Sessions::default();
    let session = sessions.open(LEASE, "policy");
    for (path, stays) in [(session.path(), true), (format!("{SESSIONS}/another"), false)] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let limits = Limits {
            known: 10,
            known_of_one: 10,
            unknown: 1,
            unknown_of_one: 1,
        };
        let long = Duration::from_secs(600);
        let bounds = Bounds {
            limits,
            first_request: long,
            between_requests: long,
        };
        tokio::spawn(serve_within(
            bounds,
            listener,
            router(sessions.clone()),
            std::future::pending(),
        ));
        let mut agent = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path}/v1/models HTTP/1.1\r\nhost: x\r\n{RELAY_LEASE_HEADER}: {LEASE}\r\n\r\n");
        agent.write_all(request.as_bytes()).await.unwrap();
        let mut part = [0; 4096];
        if stays {
            assert!(agent.read(&mut part).await.unwrap() > 0);
        }
        let mut others = Vec::new();
        for _ in 0..3 {
            others.push(TcpStream::connect(address).await.unwrap());
        }
        match stays {
            // A second answer on the same connection.
            true => {
                agent.write_all(request.as_bytes()).await.unwrap();
                assert!(agent.read(&mut part).await.unwrap() > 0);
            }
            // Its request waits for a session, and its connection gives way.
            false => assert!(!agent.read(&mut part).await.is_ok_and(|count| count > 0)),
        }
    }
}

#[tokio::test]
async fn a_client_finds_the_model_by_any_name() {
    let sessions = Sessions::default();
    let session = sessions.open(LEASE, "policy");
    for (anthropic, field) in [(false, "object"), (true, "type")] {
        for name in ["policy", "Qwen/Qwen3-8B"] {
            let path = format!("{}/v1/models/{name}", session.path());
            let (status, body) = got(&sessions, &path, anthropic).await;
            assert_eq!(status, StatusCode::OK, "{body}");
            assert_eq!(body["id"], name);
            assert_eq!(body[field], "model");
        }
    }
}

#[tokio::test]
async fn a_path_that_is_not_served_gets_the_paths_that_are_until_its_session_has_ended() {
    let sessions = Sessions::default();
    let session = sessions.open(LEASE, "policy");
    let path = session.path();
    let clients = [(false, "invalid_request_error"), (true, "not_found_error")];
    for below in ["", "/", "/v1", "/v1/completions", "/v1/messages/batches", "/api/tags"] {
        for (anthropic, kind) in clients {
            let (status, body) = got(&sessions, &format!("{path}{below}"), anthropic).await;
            assert_eq!(status, StatusCode::NOT_FOUND, "{below}");
            assert_eq!(body["error"]["type"], kind, "{below}");
            assert_eq!(body["error"]["message"], UNSERVED, "{below}");
        }
    }
    session.over();
    for (anthropic, _) in clients {
        let (status, body) = got(&sessions, &format!("{path}/v1/completions"), anthropic).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        assert_eq!(body["error"]["message"], OVER);
    }
}

#[tokio::test]
async fn a_request_that_no_gateway_passed_on_does_not_wait() {
    let (sessions, headers) = (Sessions::default(), HeaderMap::new());
    let response = ask(&sessions, "unknown", &headers, Body::empty(), Api::Responses, false).await;
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_client_of_gemini_is_answered_by_the_method_in_its_path() {
    use crate::recording::request::Usage;

    let sessions = Sessions::default();
    let mut session = sessions.open(LEASE, "policy");
    let path = session.path();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = router(sessions.clone());
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    for (method, kind, begins, says) in [
        ("generateContent?key=none", JSON, "{", "\"text\":\"Hello.\""),
        (
            "streamGenerateContent?alt=sse",
            "text/event-stream",
            "data: {",
            "\"finishReason\":\"STOP\"",
        ),
        ("streamGenerateContent", JSON, "[{", "\"finishReason\":\"STOP\""),
        ("countTokens", JSON, "{", "\"totalTokens\":9"),
    ] {
        let asks = client
            .post(format!("http://{address}{path}/v1beta/models/a/b:{method}"))
            .header(RELAY_LEASE_HEADER, LEASE)
            .header("x-goog-api-key", "none")
            .body(r#"{"contents":[{"parts":[{"text":"Hi."}]}]}"#)
            .send();
        let answers = async {
            let asked = session.next().await;
            assert_eq!(asked.request.model, "a/b");
            let answer = Answer {
                id: "0".into(),
                created: 0,
                content: "Hello.".into(),
                reasoning: None,
                calls: Vec::new(),
                cut: false,
                usage: Usage {
                    prompt_tokens: 9,
                    completion_tokens: 1,
                },
            };
            let _ = asked.reply.send(match asked.wanted {
                Wanted::Count => Reply::Count(9),
                Wanted::Answer(..) => Reply::Answer(Box::new(answer)),
            });
        };
        let (response, ()) = tokio::join!(asks, answers);
        let response = response.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{method}");
        assert_eq!(response.headers()[CONTENT_TYPE], kind, "{method}");
        let text = response.text().await.unwrap();
        assert!(text.starts_with(begins) && text.contains(says), "{method}: {text}");
    }
    server.abort();
    let (status, listed) = got(&sessions, &format!("{path}/v1beta/models"), false).await;
    assert_eq!(
        (status, &listed["models"][0]["name"]),
        (StatusCode::OK, &"models/policy".into())
    );
    let (status, body) = got(&sessions, &format!("{path}/v1beta/models/a/b"), false).await;
    assert_eq!((status, &body["name"]), (StatusCode::OK, &"models/a/b".into()));
    let (status, body) = got(&sessions, &format!("{path}/v1beta/files"), false).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(
        body["error"],
        serde_json::json!({ "code": 404, "message": UNSERVED, "status": "NOT_FOUND" })
    );
    session.over();
}
