//! What driver, gateway and sandboxd say to each other about sandboxes.
//!
//! Three conversations share these types: a driver leases a sandbox from the gateway and works in it ([`lease`],
//! [`exec`], [`session`], [`relay`]); the gateway passes the work on to sandboxd, signed ([`signature`]); the gateway
//! keeps its leases in the pool's ledger ([`lease::LedgerEntry`]), and tells there how the pool is ([`report`]). Every
//! error answer has one body ([`error::ErrorBody`]) that says whose fault it is, because only that decides whether an
//! episode is void or lost.

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

/// Where sandboxd's image is mounted in every sandbox.
pub const MOUNT: &str = "/grpo";
/// The folder there with programs for what runs in the sandbox: the edit tool. It is on no path by itself.
pub const TOOLS: &str = "/grpo/bin";
/// Port sandboxd listens on.
pub const SANDBOXD_PORT: u16 = 7070;
/// sandboxd closes a connection on which no whole request head has arrived for so long. The gateway forgets idle ones
/// earlier, so that it never sends into one that is being closed.
pub const IDLE_CONNECTION: Duration = Duration::from_secs(60);
/// Environment variable that holds the gateway's public key, base64.
pub const KEY_ENV: &str = "GRPO_GATEWAY_KEY";
/// Exit code of a sandboxd that was told to end and put everything back that outlives its container: the container may
/// restart.
pub const RESET_EXIT: u8 = 75;
/// Longest id of a command, a session or an input, bytes.
pub const MAX_ID_BYTES: usize = 256;
/// Largest file that goes in or out in one call, bytes.
pub const MAX_FILE_BYTES: usize = 64 << 20;
/// Largest JSON body of a call, bytes.
pub const MAX_JSON_BYTES: usize = 8 << 20;
/// Output of a command that is kept when the caller does not say, bytes.
pub const DEFAULT_OUTPUT_BYTES: u64 = 1 << 20;
/// Most output a caller may ask to keep, bytes.
pub const MAX_OUTPUT_BYTES: u64 = 32 << 20;
/// Of what a command prints beyond the output it keeps, so much can be fetched afterwards, bytes.
pub const MAX_SPOOL_BYTES: u64 = 64 << 20;
/// Most bytes in one part of an output.
pub const MAX_PART_BYTES: usize = 4 << 20;
/// Longest a call waits for a command to print something or to end.
pub const MAX_POLL: Duration = Duration::from_secs(50);

/// Bytes in JSON.
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
