//! The source of a pin's files: a hub, or any other store that returns a file's bytes from a given byte.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use futures::stream::BoxStream;

use crate::error::HubError;
use crate::repository::{Commit, RemoteFile};
use crate::retry;

/// The bytes of a file as they arrive.
pub type ByteStream = BoxStream<'static, Result<bytes::Bytes, HubError>>;

/// Files that are listed and can be downloaded. `Display` names them in messages, such as `model Qwen/Qwen3-8B`.
pub trait FileSource: fmt::Display + Sync {
    /// Consecutive attempts without a new byte, before a transient error ends the download.
    const ATTEMPTS: u32 = retry::ATTEMPTS;

    /// The folder of these files in a cache. It is unique to the source.
    fn folder(&self) -> String;

    /// The bytes of a file from `from` on, and the position of the first: 0 if the server has no ranges. One attempt.
    fn bytes(
        &self,
        commit: &Commit,
        file: &RemoteFile,
        from: u64,
    ) -> impl Future<Output = Result<(u64, ByteStream), Refused>> + Send;
}

/// A failed attempt, and the wait that the server asks for.
pub struct Refused {
    pub error: HubError,
    pub asked: Option<Duration>,
}

impl From<HubError> for Refused {
    fn from(error: HubError) -> Self {
        Self { error, asked: None }
    }
}
