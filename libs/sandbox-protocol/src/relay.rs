//! A way out of a sandbox that has none: a loopback port in it, carried over the connection that the gateway holds to
//! one service.
//!
//! Each client of the port gets a connection of its own. The gateway always has a `POST /relay` waiting at sandboxd.
//! sandboxd answers it when a client connects, and then the HTTP connection itself carries the bytes. The gateway reads
//! HTTP on it and forwards the requests, with the lease's name in a header. The sandbox needs no token, because only
//! this sandbox can use the connection.

use serde::{Deserialize, Serialize};

/// What the connection is upgraded to (RFC 9110, section 7.8).
pub const RELAY_PROTOCOL: &str = "grpo-relay";
/// In every request that is passed on: which lease it comes from. What the sandbox sends under this name is taken out.
pub const RELAY_LEASE_HEADER: &str = "x-grpo-lease";

/// The services that a port may lead to.
pub const RELAY_TARGET: &str = concat!(
    "^http://[a-z0-9]([a-z0-9.-]*[a-z0-9])?",
    "(:([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?",
    "(/[A-Za-z0-9._~/-]*)?$"
);

/// Open a port of the sandbox to a service. Said again it changes nothing, or where the port leads; a gateway that was
/// restarted has to be told again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RelayRequest {
    /// On the sandbox's loopback address; at least 1024.
    #[cfg_attr(feature = "schema", schemars(range(min = 1024)))]
    pub port: u16,
    /// `http://host[:port][/path]`: the path is put before that of each request.
    #[cfg_attr(
        feature = "schema",
        schemars(regex(pattern = RELAY_TARGET))
    )]
    pub to: String,
}
