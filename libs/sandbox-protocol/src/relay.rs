//! The relay: the only connection out of a sandbox without a network. It carries a loopback port of the sandbox to one
//! service, over a connection of the gateway.
//!
//! Each client of the port gets its own connection. The gateway always has a `POST /relay` waiting at sandboxd.
//! sandboxd answers it when a client connects, and then the HTTP connection itself carries the bytes. The gateway reads
//! HTTP on it and forwards the requests, with the lease's name in a header. The sandbox needs no token, because only
//! this sandbox can use the connection.

use serde::{Deserialize, Serialize};

/// The upgrade protocol (RFC 9110, section 7.8).
pub const RELAY_PROTOCOL: &str = "grpo-relay";
/// Header of every forwarded request: the lease that it comes from. A value from the sandbox itself is removed.
pub const RELAY_LEASE_HEADER: &str = "x-grpo-lease";

/// The addresses of services that a port may lead to.
pub const RELAY_TARGET: &str = concat!(
    "^http://[a-z0-9]([a-z0-9.-]*[a-z0-9])?",
    "(:([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?",
    "(/[A-Za-z0-9._~/-]*)?$"
);

/// A port of the sandbox that leads to a service. A second request changes the service. A restarted gateway needs the
/// request again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RelayRequest {
    /// On the sandbox's loopback address; at least 1024.
    #[cfg_attr(feature = "schema", schemars(range(min = 1024)))]
    pub port: u16,
    /// `http://host[:port][/path]`; the path is put before the path of each request.
    #[cfg_attr(
        feature = "schema",
        schemars(regex(pattern = RELAY_TARGET))
    )]
    pub to: String,
}
