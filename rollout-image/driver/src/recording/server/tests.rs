use super::super::sessions::{HOLD, Session};
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

#[tokio::test]
async fn a_request_that_no_gateway_passed_on_does_not_wait() {
    let (sessions, headers) = (Sessions::default(), HeaderMap::new());
    let response = ask(&sessions, "unknown", &headers, Body::empty(), Api::Responses, false).await;
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
}
