//! `packageIndex` of a SandboxPool: the one server that graders may reach.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cel;

/// A package index that graders reach, and agents never do. Graders run the code of patches, which reaches it too: the
/// index must take no uploads, and fetch from no address that its callers choose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = cel::exactly_one(&["pods", "cidr"]))]
pub struct PackageIndex {
    /// URL of the simple index, such as `http://pypi.packages.svc/simple`, without credentials and without a query.
    /// pip and uv of graders get it in their environment. Sandboxes have no DNS: the gateway looks the host up, and
    /// writes its addresses into their `/etc/hosts`.
    #[schemars(
        length(min = 8, max = 253),
        regex(
            pattern = r"^https?://[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*(:([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?(/[^@?#\s]*)?$"
        )
    )]
    pub url: String,
    /// The pods that serve it, where it runs in this cluster. Give these or `cidr`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<IndexPods>,
    /// Its addresses where it runs elsewhere, such as `10.1.2.3/32`: at most 65,536, so at least `/16`. Give these or
    /// `pods`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 4, max = 43),
        regex(pattern = r"^[0-9a-fA-F:.]+/(1[6-9]|[2-9][0-9]|1[01][0-9]|12[0-8])$")
    )]
    pub cidr: Option<String>,
    /// The port that a NetworkPolicy sees: behind a Service it is that of the pod, the Service's `targetPort`. Default:
    /// the port of the URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
}

/// The pods that serve a package index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IndexPods {
    /// Their namespace. Default: the pool's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: Option<String>,
    /// Labels that they carry, at least one.
    #[schemars(extend("minProperties" = 1, "maxProperties" = 32))]
    pub match_labels: BTreeMap<String, String>,
}

impl PackageIndex {
    /// Whether the URL is one of plain HTTP.
    pub fn is_plain(&self) -> bool {
        self.url.starts_with("http://")
    }

    /// The host of the URL, a name or an address.
    pub fn host(&self) -> &str {
        self.authority().split(':').next().unwrap_or_default()
    }

    /// The port that clients connect to.
    pub fn url_port(&self) -> u16 {
        let written = self.authority().split_once(':').and_then(|(_, port)| port.parse().ok());
        written.unwrap_or(if self.is_plain() { 80 } else { 443 })
    }

    /// The port that a NetworkPolicy sees.
    pub fn policy_port(&self) -> u16 {
        self.port.unwrap_or_else(|| self.url_port())
    }

    fn authority(&self) -> &str {
        let after = self.url.split_once("://").map_or("", |(_, after)| after);
        after.split('/').next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
