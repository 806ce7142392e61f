use super::*;

const SERVER: &str = "https://api.corp.example:6443";

fn chosen(server: &str, of_kubeconfig: Option<&str>, https: &str, no: &str) -> Result<Option<String>, String> {
    let environment = Environment {
        https: https.to_owned(),
        http: "http://plain.example:80".to_owned(),
        no: no.to_owned(),
    };
    let proxy = choose(&server.parse().unwrap(), of_kubeconfig, &environment)?;
    Ok(proxy.map(|proxy| proxy.to_string()))
}

#[test]
fn no_proxy_is_compared_with_the_server_and_not_with_the_proxy() {
    let proxy = "http://me:secret@proxy.corp.example:3128";
    let through = Some("http://me:secret@proxy.corp.example:3128/".to_owned());
    for (server, no, expected) in [
        (SERVER, "", &through),
        (SERVER, "other.example", &through),
        (SERVER, "proxy.corp.example", &through),
        (SERVER, ".corp.example", &None),
        (SERVER, "corp.example", &None),
        (SERVER, "*", &None),
        ("https://cluster.cloud.example", ".corp.example,10.0.0.0/8", &through),
        ("https://10.1.2.3:6443", "10.0.0.0/8", &None),
        (SERVER, "*.corp.example", &None),
        (SERVER, " api.corp.example:6443 ,, ", &None),
        (SERVER, "api.corp.example:443", &through),
        ("https://api.corp.example", "api.corp.example:443", &None),
        ("https://10.1.2.3:6443", "10.1.2.3:6443", &None),
        ("https://10.1.2.3:6443", "10.1.2.3:443", &through),
        ("https://[fd00::1]:6443", "fd00::1", &None),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", &None),
        ("https://127.0.0.1:6443", "", &None),
        ("https://[::1]:6443", "", &None),
        ("https://localhost:6443", "", &None),
    ] {
        assert_eq!(
            &chosen(server, None, proxy, no).unwrap(),
            expected,
            "{server}, NO_PROXY={no}"
        );
    }
}

#[test]
fn the_proxy_of_the_kubeconfig_is_used_whatever_the_environment_says() {
    let proxy = chosen(SERVER, Some("socks5://127.0.0.1:1080"), "http://other.example", "*").unwrap();
    assert_eq!(proxy.as_deref(), Some("socks5://127.0.0.1:1080/"));
}

#[test]
fn a_proxy_without_a_scheme_speaks_http_and_a_plain_server_has_its_own() {
    let proxy = chosen(SERVER, None, "proxy.example:3128", "").unwrap();
    assert_eq!(proxy.as_deref(), Some("http://proxy.example:3128/"));
    let proxy = chosen("http://api.example:8080", None, "proxy.example:3128", "").unwrap();
    assert_eq!(proxy.as_deref(), Some("http://plain.example:80/"));
}

#[test]
fn a_proxy_that_cannot_be_used_is_refused_by_its_place_without_its_password() {
    for proxy in [
        "ftp://me:secret@proxy.example",
        "http://me:secret word@proxy",
        "https://me:secret@proxy.example",
        "socks5://me:secret@proxy.example",
    ] {
        let of_kubeconfig = chosen(SERVER, Some(proxy), "", "").unwrap_err();
        assert!(of_kubeconfig.contains("proxy-url in the kubeconfig"), "{of_kubeconfig}");
        let of_environment = chosen(SERVER, None, proxy, "").unwrap_err();
        assert!(of_environment.contains("HTTPS_PROXY"), "{of_environment}");
        assert!(!format!("{of_kubeconfig}{of_environment}").contains("secret"));
    }
}

#[test]
fn a_socks_proxy_has_its_default_port_and_looks_up_names() {
    for proxy in ["socks5://proxy.example", "socks5h://proxy.example"] {
        let chosen = chosen(SERVER, None, proxy, "").unwrap();
        assert_eq!(chosen.as_deref(), Some("socks5://proxy.example:1080/"));
    }
}

#[test]
fn a_server_behind_a_proxy_is_named_with_its_port() {
    for (server, named) in [
        ("http://api.example", "http://api.example:80/"),
        ("https://api.example/k8s/c-1", "https://api.example:443/k8s/c-1"),
        ("https://[fd00::1]:6443", "https://[fd00::1]:6443/"),
    ] {
        assert_eq!(with_port(&server.parse().unwrap()).unwrap().to_string(), named);
    }
}

#[test]
fn the_proxy_is_that_of_the_chosen_context_s_cluster() {
    let read: Kubeconfig = serde_yaml_ng::from_str(
        "
        current-context: one
        contexts:
        - {name: one, context: {cluster: near}}
        - {name: two, context: {cluster: far}}
        clusters:
        - {name: near, cluster: {server: 'https://near.example'}}
        - {name: far, cluster: {server: 'https://far.example', proxy-url: 'http://proxy.example:3128'}}
        ",
    )
    .unwrap();
    assert_eq!(of_kubeconfig(&read, None), None);
    assert_eq!(
        of_kubeconfig(&read, Some("two")).as_deref(),
        Some("http://proxy.example:3128")
    );
}
