//! The package index that graders reach: whose leases reach it, with which environment, by which addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use grpo_crds::sandbox_pool::PackageIndex;
use grpo_sandbox_protocol::{ErrorBody, ErrorCode, FaultOrigin, LedgerEntry, Priority};
use k8s_openapi::api::core::v1::HostAlias;

use crate::egress::PROBE_RUN;

/// Addresses of one host that are written into a pod.
const MAX_ADDRESSES: usize = 8;

/// Whether a lease is let out to the pool's package index. The egress probe is not: it shows what agents reach.
pub fn reaches_packages(entry: &LedgerEntry) -> bool {
    entry.priority == Priority::Grader && entry.run != PROBE_RUN
}

/// What pip and uv read, in the environment of each command of a grader.
pub fn environment(index: &PackageIndex) -> BTreeMap<&'static str, &str> {
    let mut variables: BTreeMap<&str, &str> = ["PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX"]
        .map(|name| (name, index.url.as_str()))
        .into();
    if index.is_plain() {
        variables.insert("PIP_TRUSTED_HOST", index.host());
    }
    variables
}

/// The index's host, if it is a name.
pub fn name(index: &PackageIndex) -> Option<&str> {
    Some(index.host()).filter(|host| host.parse::<IpAddr>().is_err())
}

/// Lines of a pod's hosts file. The same addresses make the same lines, in any order of DNS's answer.
pub fn aliases(index: &PackageIndex, found: impl IntoIterator<Item = IpAddr>) -> Vec<HostAlias> {
    let Some(name) = name(index) else {
        return Vec::new();
    };
    let found: BTreeSet<IpAddr> = found.into_iter().collect();
    let line = |ip: &IpAddr| HostAlias {
        ip: ip.to_string(),
        hostnames: Some(vec![name.to_owned()]),
    };
    found.iter().take(MAX_ADDRESSES).map(line).collect()
}

/// Where a pod with these lines in its hosts file finds the index.
pub fn addresses(index: &PackageIndex, aliases: &[HostAlias]) -> Vec<SocketAddr> {
    let is_its = |alias: &&HostAlias| alias.hostnames.iter().flatten().any(|name| name == index.host());
    let written = aliases.iter().filter(is_its).filter_map(|alias| alias.ip.parse().ok());
    let own = index.host().parse().ok();
    let found = own.into_iter().chain(written);
    found.map(|ip: IpAddr| SocketAddr::new(ip, index.url_port())).collect()
}

/// Refuses a grader. `what`: what was tried and failed; `remedy`: what to look at.
pub fn unreachable(index: &PackageIndex, what: &str, remedy: &str) -> ErrorBody {
    let message = format!("package index {}: {what}; {remedy}", index.url);
    ErrorBody::new(ErrorCode::PackageIndexUnreachable, FaultOrigin::Infrastructure, message)
}

#[cfg(test)]
mod tests;
