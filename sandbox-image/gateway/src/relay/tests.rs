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
