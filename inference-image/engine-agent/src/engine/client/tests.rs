use super::*;

#[test]
fn only_this_pod_and_services_of_the_cluster_are_called_without_a_proxy() {
    for (url, near) in [
        ("http://127.0.0.1:8001", true),
        ("http://[::1]:8001", true),
        ("http://localhost:8001/v1", true),
        ("http://vllm:8000", true),
        ("http://vllm.team.svc:8000", true),
        ("http://VLLM.team.svc.:8000", true),
        ("http://vllm.team.svc.cluster.local", true),
        ("http://vllm.team.svc.example.internal:8000", true),
        ("http://10-0-0-1.team.pod.cluster.local", true),
        ("https://api.example.com/v1", false),
        ("https://svc.example.com", false),
        ("https://example.com/vllm.team.svc", false),
        ("http://10.0.0.7:8000", false),
        ("http://[fd00::7]:8000", false),
    ] {
        assert_eq!(is_near(&Url::parse(url).unwrap()), near, "{url}");
    }
}

#[test]
fn a_file_of_authorities_that_cannot_be_read_is_named_where_it_is_needed() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("authorities.pem");
    let made = |url: &str| client(&Url::parse(url).unwrap(), HeaderMap::new(), Some(&missing));
    let refused = made("https://api.example.com").unwrap_err().to_string();
    for words in ["authorities.pem", "SSL_CERT_FILE"] {
        assert!(refused.contains(words), "{refused}");
    }
    assert!(made("http://127.0.0.1:8001").is_ok());
}
