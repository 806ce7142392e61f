//! The messages between driver, gateway and sandboxd about sandboxes.
//!
//! Three conversations share these types. A driver leases a sandbox from the gateway and works in it ([`lease`],
//! [`exec`], [`session`], [`relay`]). The gateway forwards the work to sandboxd, signed ([`signature`]). The gateway
//! keeps its leases in the pool's ledger ([`lease::LedgerEntry`]) and writes the state of the pool there ([`report`]).
//! All error responses have one body ([`error::ErrorBody`]) with the origin of the fault: only the origin decides
//! whether an episode is void or lost.

use std::time::Duration;

pub mod error;
pub mod exec;
pub mod lease;
pub mod probe;
pub mod relay;
pub mod report;
pub mod room;
pub mod session;
pub mod signature;
pub mod trouble;

pub use error::{ErrorBody, ErrorCode, FaultOrigin, SandboxCause};
pub use exec::{Bind, ExecRequest, ExecResult, ExecState, KillRequest, Killed, OutputPart, RenewRequest};
pub use lease::{Demand, ImageDemand, Lease, LeaseRequest, LedgerEntry, PackageIndexState, PoolState, Priority};
pub use probe::{Activity, Limits, MAX_PROBED, ProbeReply, ProbeRequest};
pub use relay::{RELAY_LEASE_HEADER, RELAY_PROTOCOL, RELAY_TARGET, RelayRequest};
pub use report::{EgressReport, PoolReport, REPORT_ANNOTATION};
pub use room::{Room, Share};
pub use session::{CloseRequest, SessionInput, SessionReply, SessionRequest, Until};
pub use signature::{SignatureError, Signed, Signer, Verifier};
pub use trouble::{ImageTrouble, StuckPod};

/// Mount point of sandboxd's image in every sandbox.
pub const MOUNT: &str = "/grpo";
/// The folder with programs for use in the sandbox: the edit tool. It is not on `PATH` by default.
pub const TOOLS: &str = "/grpo/bin";
/// Port of sandboxd.
pub const SANDBOXD_PORT: u16 = 7070;
/// sandboxd closes a connection if no complete request head arrives for this long. The gateway drops idle connections
/// earlier, so it never sends into a connection that is being closed.
pub const IDLE_CONNECTION: Duration = Duration::from_secs(60);
/// Environment variable with the gateway's public key, base64.
pub const KEY_ENV: &str = "GRPO_GATEWAY_KEY";
/// Exit code of sandboxd after an order to end, if it has undone every change that outlives its container: the
/// container may restart.
pub const RESET_EXIT: u8 = 75;
/// Maximum length of the id of a command, a session or an input, in bytes.
pub const MAX_ID_BYTES: usize = 256;
/// Maximum size of a file in one call, in or out, in bytes.
pub const MAX_FILE_BYTES: usize = 64 << 20;
/// Maximum size of the JSON body of a call, in bytes.
pub const MAX_JSON_BYTES: usize = 8 << 20;
/// Output of a command that is kept by default, in bytes.
pub const DEFAULT_OUTPUT_BYTES: u64 = 1 << 20;
/// Maximum output that a caller may ask to keep, in bytes.
pub const MAX_OUTPUT_BYTES: u64 = 32 << 20;
/// Output beyond the kept part that can be fetched afterwards, in bytes per command.
pub const MAX_SPOOL_BYTES: u64 = 64 << 20;
/// Maximum bytes in one part of an output.
pub const MAX_PART_BYTES: usize = 4 << 20;
/// Longest time that a call waits for a command to print or to end.
pub const MAX_POLL: Duration = Duration::from_secs(50);

/// Bytes as base64 in JSON.
mod bytes_as_base64 {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map_err(D::Error::custom)
    }
}
