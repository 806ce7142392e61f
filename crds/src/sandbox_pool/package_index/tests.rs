use super::PackageIndex;

fn index(url: &str, port: Option<u16>) -> PackageIndex {
    PackageIndex {
        url: url.to_owned(),
        pods: None,
        cidr: Some("10.1.2.3/32".to_owned()),
        port,
    }
}

#[test]
fn an_index_has_the_host_and_port_of_its_url_and_the_port_of_its_pods_where_that_is_another() {
    for (url, port, host, url_port, policy_port) in [
        ("http://pypi.packages.svc/simple", None, "pypi.packages.svc", 80, 80),
        ("https://pypi.example.com/simple/", None, "pypi.example.com", 443, 443),
        ("http://pypi:3141/root/pypi/+simple/", None, "pypi", 3141, 3141),
        ("http://pypi/simple", Some(8080), "pypi", 80, 8080),
        ("http://10.1.2.3:8081", None, "10.1.2.3", 8081, 8081),
    ] {
        let index = index(url, port);
        assert_eq!(
            (index.host(), index.url_port(), index.policy_port()),
            (host, url_port, policy_port),
            "{url}"
        );
    }
}
