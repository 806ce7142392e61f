use super::*;
use axum::Router;
use axum::body::Body;
use axum::http::header::CONTENT_LENGTH;
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;

fn asked_again(code: ErrorCode, fault: Whose) -> bool {
    let status = StatusCode::from_u16(code.status()).unwrap();
    may_pass(status, &ErrorBody::new(code, fault, "why"))
}

#[test]
fn what_the_workload_brought_about_is_not_waited_for() {
    for code in [ErrorCode::Unavailable, ErrorCode::Internal, ErrorCode::BadSignature] {
        assert!(!asked_again(code, Whose::Workload), "{code:?}");
        assert!(asked_again(code, Whose::Infrastructure), "{code:?}");
    }
    assert!(!asked_again(ErrorCode::NoSuchFile, Whose::Workload));
}

#[test]
fn what_the_infrastructure_may_get_over_is_waited_for() {
    use ErrorCode::*;
    for code in [
        EgressUnproven,
        QueueDeadline,
        SandboxUnreachable,
        BadSignature,
        ImageUnavailable,
    ] {
        assert!(asked_again(code, Whose::Infrastructure), "{code:?}");
    }
    // Another lease's sandbox never becomes this lease's.
    for code in [WrongLease, SandboxLost] {
        assert!(!asked_again(code, Whose::Infrastructure), "{code:?}");
    }
}

/// A request to a gateway that answers so.
async fn answered(answer: fn() -> Response) -> Result<Bytes, Refusal> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().fallback(move || async move { answer() });
    tokio::spawn(async move { axum::serve(listener, router).await });
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    once(client.get(url), 1000, &Room::of_files(1)).await
}

/// A body without a length that never ends.
fn endless() -> Body {
    let part = || async { Ok::<_, std::io::Error>(vec![b'x'; 100]) };
    Body::from_stream(futures::stream::repeat(()).then(move |()| part()))
}

#[tokio::test]
async fn an_answer_is_read_up_to_its_bound_and_no_further() {
    let whole = answered(|| vec![b'x'; 1000].into_response()).await;
    assert!(whole.is_ok_and(|bytes| bytes.len() == 1000));
    let declared = answered(|| ([(CONTENT_LENGTH, "1001")], vec![b'x'; 1001]).into_response()).await;
    let streamed = answered(|| endless().into_response()).await;
    for refused in [declared, streamed] {
        let refusal = refused.unwrap_err();
        assert_eq!(refusal.code(), Some(ErrorCode::TooLarge));
        assert!(matches!(&refusal, Refusal::Final(body) if body.fault == Whose::Infrastructure));
    }
}

#[tokio::test]
async fn of_a_refusal_without_an_end_only_the_status_counts() {
    let refused = answered(|| (StatusCode::BAD_GATEWAY, endless()).into_response()).await;
    assert!(matches!(refused, Err(Refusal::Away(why)) if why.contains("502")));
}

#[test]
fn the_worst_output_of_a_command_fits_into_its_answer() {
    let worst = serde_json::to_string(&"\u{1}".repeat(100_000)).unwrap();
    assert!(worst.len() <= answer_of_output(100_000));
    assert_eq!(answer_of_output(u64::MAX), usize::MAX);
}
