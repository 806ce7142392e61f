use super::*;

#[test]
fn a_request_is_called_what_rights_call_it() {
    for (method, path, query, wanted) in [
        (Method::GET, "/api/v1/pods", Some("limit=500"), "list"),
        (Method::GET, "/api/v1/pods", Some("watch=true&limit=500"), "watch"),
        (Method::GET, "/api/v1/namespaces/a/pods", None, "list"),
        (Method::GET, "/api/v1/namespaces/a/pods/b", None, "get"),
        (
            Method::GET,
            "/apis/grpo.dev/v1alpha1/namespaces/a/grporuns/b/status",
            None,
            "get",
        ),
        (Method::GET, "/api/v1/namespaces/a", None, "get"),
        (
            Method::PATCH,
            "/apis/grpo.dev/v1alpha1/namespaces/a/grporuns/b/status",
            None,
            "patch",
        ),
        (Method::POST, "/api/v1/namespaces/a/pods", None, "create"),
        (Method::DELETE, "/api/v1/namespaces/a/pods/b", None, "delete"),
    ] {
        assert_eq!(verb(&method, path, query), wanted, "{method} {path}");
    }
}

#[test]
fn a_replica_without_a_term_reads_and_asks_for_the_lease_and_writes_nothing_else() {
    let may = |method: &Method, path: &str| {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        may_be_sent_by_anybody(&request)
    };
    assert!(may(&Method::GET, "/api/v1/pods"));
    assert!(may(
        &Method::PUT,
        "/apis/coordination.k8s.io/v1/namespaces/a/leases/grpo-operator"
    ));
    for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
        assert!(!may(&method, "/api/v1/namespaces/a/pods"), "{method}");
    }
}

#[test]
fn a_time_that_jiff_cannot_read_is_moved_wherever_an_answer_is_cut() {
    let answer =
        r#"{"a":[{"time":"9999-12-31T23:59:59Z"}],"value":"9999-12-31T23:59:59Z","notBefore":"9999-12-30T22:00:01Z"}"#;
    let wanted =
        r#"{"a":[{"time":"9999-12-21T23:59:59Z"}],"value":"9999-12-31T23:59:59Z","notBefore":"9999-12-20T22:00:01Z"}"#;
    for cut in 0..answer.len() {
        let mut mended = Mended::default();
        let mut whole = mended.data(Bytes::from(&answer[..cut])).to_vec();
        whole.extend_from_slice(&mended.data(Bytes::from(&answer[cut..])));
        assert_eq!(String::from_utf8(whole).unwrap(), wanted, "cut at {cut}");
    }
    let read = |time: &str| time.parse::<jiff::Timestamp>().is_ok();
    assert!(read("9999-12-21T23:59:59Z") && !read("9999-12-31T23:59:59Z"));
}

#[tokio::test]
async fn no_request_is_repeated_where_the_write_window_is_not_asked() {
    let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = asked.clone();
    let busy = axum::Router::new().fallback(move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        async { (hyper::StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "0")]) }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, busy).await });

    let config = Config::new(format!("http://{address}").parse().unwrap());
    let client = client(config, &Metrics::new(), &Arc::new(WriteWindow::new())).unwrap();
    let pods: kube::Api<k8s_openapi::api::core::v1::Pod> = kube::Api::default_namespaced(client);
    assert!(pods.get("any").await.is_err());
    assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed), 1);
}
