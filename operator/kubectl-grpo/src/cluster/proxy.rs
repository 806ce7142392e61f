//! The proxy between the plugin and the API server: chosen as kubectl chooses it, by kubeconfig and environment.
//!
//! kube compares `NO_PROXY` with the address of the proxy, not with that of the server. A company whose `NO_PROXY`
//! holds its own domain, proxy included, would lose its way to the cluster; one that excepts its cluster would ask the
//! proxy.

use hyper::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use kube::config::Kubeconfig;
use std::net::IpAddr;

/// The variables of the environment that name proxies; empty if they are not set.
#[derive(Debug, Default)]
pub struct Environment {
    pub https: String,
    pub http: String,
    pub no: String,
}

impl Environment {
    pub fn read() -> Self {
        Self {
            https: first(&["HTTPS_PROXY", "https_proxy"]),
            http: first(&["HTTP_PROXY", "http_proxy"]),
            no: first(&["NO_PROXY", "no_proxy"]),
        }
    }
}

fn first(names: &[&str]) -> String {
    let mut values = names.iter().filter_map(|name| std::env::var(name).ok());
    values.find(|value| !value.is_empty()).unwrap_or_default()
}

/// The `proxy-url` of the cluster of this context, or of the current one.
pub fn of_kubeconfig(kubeconfig: &Kubeconfig, context: Option<&str>) -> Option<String> {
    let context = context.or(kubeconfig.current_context.as_deref())?;
    let context = kubeconfig.contexts.iter().find(|named| named.name == context)?;
    let cluster = &context.context.as_ref()?.cluster;
    let cluster = kubeconfig.clusters.iter().find(|named| &named.name == cluster)?;
    let proxy = cluster.cluster.as_ref()?.proxy_url.clone()?;
    (!proxy.is_empty()).then_some(proxy)
}

/// The proxy for `server`: the kubeconfig's, or the environment's unless `NO_PROXY` or the address of this machine
/// excepts the server. The error is a text that names where the wrong address stands, without the address: it may hold
/// a password.
pub fn choose(server: &Uri, of_kubeconfig: Option<&str>, environment: &Environment) -> Result<Option<Uri>, String> {
    if let Some(proxy) = of_kubeconfig {
        return address(proxy, "proxy-url in the kubeconfig").map(Some);
    }
    let (proxy, variable) = match server.scheme_str() {
        Some("http") => (&environment.http, "HTTP_PROXY"),
        _ => (&environment.https, "HTTPS_PROXY"),
    };
    if proxy.is_empty() || is_here(server) || is_excepted(server, &environment.no) {
        return Ok(None);
    }
    address(proxy, variable).map(Some)
}

/// Whether `NO_PROXY` names the server. The matcher knows neither `*.example.com` nor ports, which kubectl knows.
fn is_excepted(server: &Uri, no_proxy: &str) -> bool {
    let port = port(server);
    let entries = no_proxy.split(',').map(str::trim).filter_map(|entry| {
        let entry = entry.strip_prefix('*').filter(|rest| !rest.is_empty()).unwrap_or(entry);
        match entry.rsplit_once(':') {
            // An IPv6 address without brackets has more colons, and no port.
            Some((host, number)) if !host.contains(':') || host.ends_with(']') => {
                (number.parse() == Ok(port)).then(|| host.trim_matches(['[', ']']).to_owned())
            }
            _ => Some(entry.to_owned()),
        }
    });
    let entries: Vec<String> = entries.collect();
    let any_proxy = Matcher::builder().all("http://proxy").no(entries.join(",")).build();
    any_proxy.intercept(server).is_none()
}

fn port(server: &Uri) -> u16 {
    let default = if server.scheme_str() == Some("http") { 80 } else { 443 };
    server.port_u16().unwrap_or(default)
}

/// The address with its scheme and port, which may be left out.
fn address(proxy: &str, place: &str) -> Result<Uri, String> {
    let proxy = match proxy.split_once("://") {
        // Names are always looked up by the proxy.
        Some(("socks5h", rest)) => format!("socks5://{rest}"),
        Some(_) => proxy.to_owned(),
        None => format!("http://{proxy}"),
    };
    let wrong = || format!("{place} is not the address of a proxy");
    let read: Uri = proxy.parse().map_err(|_| wrong())?;
    let authority = read.authority().ok_or_else(wrong)?.as_str();
    match read.scheme_str() {
        Some("http") => Ok(read),
        Some("socks5") if authority.contains('@') => Err(format!(
            "{place} has a user of a SOCKS5 proxy, which this program cannot send"
        )),
        // The client would take another port for the default.
        Some("socks5") if read.port().is_none() => format!("socks5://{authority}:1080").parse().map_err(|_| wrong()),
        Some("socks5") => Ok(read),
        // The client would verify the proxy's certificate with the cluster's.
        Some("https") => Err(format!(
            "{place} names a proxy that is asked by TLS; give its http address"
        )),
        _ => Err(format!("{place} names a proxy that speaks neither http nor socks5")),
    }
}

/// The address of a server behind a proxy: with its port, since proxies are asked for 443 otherwise.
pub fn with_port(server: &Uri) -> Option<Uri> {
    let host = server.host()?;
    let authority = format!("{host}:{}", port(server));
    let path = server.path_and_query().map_or("/", |path| path.as_str());
    Uri::builder()
        .scheme(server.scheme_str()?)
        .authority(authority)
        .path_and_query(path)
        .build()
        .ok()
}

/// Whether the server is this machine, which Go's programs never reach by a proxy.
fn is_here(server: &Uri) -> bool {
    let host = server.host().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests;
