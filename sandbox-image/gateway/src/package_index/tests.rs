use super::*;

fn index(url: &str) -> PackageIndex {
    serde_json::from_value(serde_json::json!({"url": url, "cidr": "10.0.0.0/16"})).unwrap()
}

fn entry(run: &str, priority: Priority) -> LedgerEntry {
    LedgerEntry {
        lease: "l".into(),
        run: run.into(),
        sandbox: "s".into(),
        pod_uid: "u".into(),
        restarts: 0,
        image: "x".into(),
        epoch: 1,
        expires_at: 0,
        ttl_millis: 0,
        priority,
    }
}

#[test]
fn graders_are_let_out_and_agents_and_the_egress_probe_are_not() {
    assert!(reaches_packages(&entry("r", Priority::Grader)));
    assert!(!reaches_packages(&entry("r", Priority::Agent)));
    assert!(!reaches_packages(&entry(PROBE_RUN, Priority::Grader)));
}

#[test]
fn pip_trusts_an_index_without_tls_and_no_other() {
    let plain = index("http://pypi:3141/simple");
    let plain = environment(&plain);
    assert_eq!(plain["PIP_TRUSTED_HOST"], "pypi");
    for name in ["PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX"] {
        assert_eq!(plain[name], "http://pypi:3141/simple");
    }
    let encrypted = index("https://pypi/simple");
    assert!(!environment(&encrypted).contains_key("PIP_TRUSTED_HOST"));
}

#[test]
fn a_pod_finds_the_index_at_the_addresses_in_its_hosts_file() {
    let index = index("http://pypi.packages.svc/simple");
    let found = ["10.0.0.2", "10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
    let aliases = aliases(&index, found);
    let lines: Vec<&str> = aliases.iter().map(|alias| alias.ip.as_str()).collect();
    assert_eq!(lines, ["10.0.0.1", "10.0.0.2"]);
    let told: Vec<String> = addresses(&index, &aliases).iter().map(ToString::to_string).collect();
    assert_eq!(told, ["10.0.0.1:80", "10.0.0.2:80"]);
    assert!(
        addresses(&index, &[]).is_empty(),
        "its host was not found when the pod was made"
    );
    let other = HostAlias {
        ip: "10.0.0.3".into(),
        hostnames: Some(vec!["other".into()]),
    };
    assert!(addresses(&index, &[other]).is_empty());
}

#[test]
fn an_index_at_an_address_needs_no_hosts_file() {
    let index = index("http://10.0.0.1:8080/simple");
    assert!(aliases(&index, ["10.0.0.1".parse().unwrap()]).is_empty());
    assert_eq!(addresses(&index, &[]), ["10.0.0.1:8080".parse().unwrap()]);
}
