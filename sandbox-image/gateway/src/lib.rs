//! The gateway of one SandboxPool: the only owner of its sandbox pods and the only client of sandboxd.
//!
//! [`begin`] assembles the parts. [`index`] makes all decisions: it keeps pods, leases, waiters and demand in memory,
//! takes events and returns actions, without I/O. [`core`] carries actions out: it creates and deletes pods, commits
//! leases to the [`ledger`] before any caller learns of them, and binds sandboxd. [`cause`] derives from a pod's status
//! why it ended, [`pull`] why it cannot begin, [`kubelet_refusal`] why its node refused it; [`slim_pod`] has the fields
//! of a pod that are read. [`pod`] builds sandbox pods. [`prefetcher`] has nodes pull the next images. [`restore`]
//! takes over leases and pods. [`sandbox`] talks to sandboxd, signed; [`egress`] knows whether sandboxes reach nothing,
//! [`package_index`] what graders reach. [`http`] is the API for drivers, [`body`] reads request bodies, [`waiters`]
//! are the callers that wait for a lease, [`relay`] is the relay from a sandbox. [`compat`] serves clients of other
//! systems. [`openapi`] describes the gateway's own API. [`api_client`] asks the API server. [`metrics`] counts;
//! [`clock`] tells the time, [`progress`] whether the scheduler works.
//!
//! # Restarts
//!
//! Leases survive the gateway in the ledger, their pods in the cluster. Renewals are not written down. A new gateway
//! therefore gives every lease with a live pod its whole time again, and the holder renews within it ([`restore`]).
//! Idle time restarts. The new gateway also takes over pods without a lease. It is ready only when it holds the ledger
//! and the watch has shown it every pod.
//!
//! # Two at a time
//!
//! Each gateway that begins holds the ledger for a term and marks its pods with it. A gateway that finds a later term,
//! in the ledger or on a pod, ends. A lease that it has not written by then is not granted.

pub mod api_client;
pub mod begin;
pub mod body;
pub mod cause;
pub mod clock;
pub mod compat;
pub mod core;
pub mod egress;
pub mod http;
pub mod index;
pub mod kubelet_refusal;
pub mod ledger;
pub mod metrics;
pub mod openapi;
pub mod package_index;
pub mod pod;
pub mod prefetcher;
pub mod progress;
pub mod pull;
pub mod refusals;
pub mod relay;
pub mod restore;
pub mod sandbox;
pub mod slim_pod;
pub mod waiters;
