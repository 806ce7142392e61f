use super::*;

#[test]
fn only_what_lies_below_the_service_can_be_reached() {
    let to = service("http://driver:8080/agent/e1/").unwrap();
    let reached = |path: &str| below(&to, &path.parse().unwrap()).map(|uri| uri.to_string());
    let completions = "http://driver:8080/agent/e1/v1/chat/completions?x=1";
    assert_eq!(reached("/v1/chat/completions?x=1").as_deref(), Some(completions));
    assert_eq!(
        reached("http://elsewhere/v1").as_deref(),
        Some("http://driver:8080/agent/e1/v1")
    );
    for out in [
        "/../secret",
        "/v1/%2e%2E/secret",
        "/v1/.%2e/x",
        "/a%2f..%2fb",
        "/a\\..\\b",
    ] {
        if let Ok(asked) = out.parse() {
            assert_eq!(below(&to, &asked), None, "{out}");
        }
    }
}

#[test]
fn a_service_is_a_plain_http_address() {
    for good in [
        "http://driver:8080",
        "http://10.0.0.7/v1",
        "http://a.b-c.svc:65535/x/~y/",
    ] {
        assert!(service(good).is_ok(), "{good}");
    }
    for bad in [
        "driver:8080",
        "https://driver",
        "http://u:p@driver",
        "http://driver/../x",
        "file:///etc",
        "/x",
        "http://d/?q=1",
        "http://hqog30dd338z*",
        "http://Driver",
        "http://-d",
        "http://d:0",
        "http://d:65536",
        "http://d/a b",
        "http://d/x\n",
        "http://d/%2e%2e",
    ] {
        assert!(service(bad).is_err(), "{bad}");
    }
}

#[test]
fn headers_of_the_connection_and_the_gateways_own_are_not_passed_on() {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("connection", "close, x-secret"),
        ("x-secret", "1"),
        ("transfer-encoding", "chunked"),
        ("x-grpo-lease", "another"),
        ("authorization", "Bearer none"),
    ] {
        headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    strip(&mut headers);
    assert_eq!(
        headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(),
        ["authorization"]
    );
}

fn request(body: &'static str) -> Request<ByteStream> {
    let body = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed();
    Request::post("/v1/chat").body(body).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_service_waits_and_is_then_to_be_repeated() {
    let (_leads, to) = watch::channel(service("http://127.0.0.1:1").unwrap());
    let began = Instant::now();
    let answer = Relays::default().pass_on(request("question"), "l", &to).await;
    assert!(began.elapsed() >= HOLD);
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.headers()[header::RETRY_AFTER], AGAIN_AFTER);
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let told: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(told["error"]["type"], "relay_error");
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_is_forgotten_while_a_request_waits_ends_no_wait_early() {
    let (leads, to) = watch::channel(service("http://127.0.0.1:1").unwrap());
    drop(leads);
    let began = Instant::now();
    let answer = Relays::default().pass_on(request(""), "l", &to).await;
    assert!(began.elapsed() >= HOLD);
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn two_calls_that_open_one_port_at_one_time_lead_it_to_the_later_service() {
    let (relays, to) = (Relays::default(), |host: &str| {
        service(&format!("http://{host}")).unwrap()
    });
    let Noted::New(followed) = relays.note("l", 1, 9000, to("first")) else {
        panic!("the port is new")
    };
    assert!(matches!(relays.note("l", 1, 9000, to("second")), Noted::IsOpen));
    assert_eq!(*followed.borrow(), to("second"));
    assert_eq!(relays.count(), 1);
    assert!(
        matches!(relays.note("l", 2, 9000, to("third")), Noted::New(_)),
        "a later lease of the same id has ports of its own"
    );
}

#[tokio::test]
async fn a_lease_has_no_more_ports_than_it_may_and_an_open_one_can_still_be_led_elsewhere() {
    let (relays, to) = (Relays::default(), service("http://driver").unwrap());
    for port in 0..PORTS as u16 {
        assert!(matches!(relays.note("l", 1, 9000 + port, to.clone()), Noted::New(_)));
    }
    assert!(matches!(relays.note("l", 1, 8000, to.clone()), Noted::TooMany));
    assert!(matches!(relays.note("l", 1, 9000, to.clone()), Noted::IsOpen));
    assert!(matches!(relays.note("other", 1, 8000, to), Noted::New(_)));
}
