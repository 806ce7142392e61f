//! The package index for graders: which leases reach it, with which environment, at which addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use grpo_crds::sandbox_pool::PackageIndex;
use grpo_sandbox_protocol::{ErrorBody, ErrorCode, FaultOrigin, LedgerEntry, Priority};
use k8s_openapi::api::core::v1::HostAlias;

use crate::egress::PROBE_RUN;

/// Maximum addresses of the index's host in a pod.
const MAX_ADDRESSES: usize = 8;

/// Whether a lease may reach the pool's package index. The egress probe may not: it shows what agents reach.
pub fn reaches_packages(entry: &LedgerEntry) -> bool {
    entry.priority == Priority::Grader && entry.run != PROBE_RUN
}

/// The variables that pip and uv read, for the environment of a grader's commands.
pub fn environment(index: &PackageIndex) -> BTreeMap<&'static str, &str> {
    let mut variables: BTreeMap<&str, &str> = ["PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX"]
        .map(|name| (name, index.url.as_str()))
        .into();
    if index.is_plain() {
        variables.insert("PIP_TRUSTED_HOST", index.host());
    }
    variables
}

/// The index's host, if it is a name and not an address.
pub fn name(index: &PackageIndex) -> Option<&str> {
    Some(index.host()).filter(|host| host.parse::<IpAddr>().is_err())
}

/// Lines of a pod's hosts file. The same addresses give the same lines, in any order of the DNS answer.
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

/// The addresses at which a pod with these hosts-file lines finds the index.
pub fn addresses(index: &PackageIndex, aliases: &[HostAlias]) -> Vec<SocketAddr> {
    let is_its = |alias: &&HostAlias| alias.hostnames.iter().flatten().any(|name| name == index.host());
    let written = aliases.iter().filter(is_its).filter_map(|alias| alias.ip.parse().ok());
    let own = index.host().parse().ok();
    let found = own.into_iter().chain(written);
    found.map(|ip: IpAddr| SocketAddr::new(ip, index.url_port())).collect()
}

/// Refuses a grader. `what`: what was tried and failed; `remedy`: what to check.
pub fn unreachable(index: &PackageIndex, what: &str, remedy: &str) -> ErrorBody {
    let message = format!("package index {}: {what}; {remedy}", index.url);
    ErrorBody::new(ErrorCode::PackageIndexUnreachable, FaultOrigin::Infrastructure, message)
}

#[cfg(test)]
mod tests;
