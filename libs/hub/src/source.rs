//! Where the files of a pin come from: a hub, or any place that gives a file's bytes from a byte on.

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
    /// Attempts in a row without a new byte, before a transient error ends the download.
    const ATTEMPTS: u32 = retry::ATTEMPTS;

    /// The folder of these files in a cache. Files of different sources never have the same one.
    fn folder(&self) -> String;

    /// The bytes of a file from `from` on, and the position of the first: 0 if the server knows no ranges. One attempt.
    fn bytes(
        &self,
        commit: &Commit,
        file: &RemoteFile,
        from: u64,
    ) -> impl Future<Output = Result<(u64, ByteStream), Refused>> + Send;
}

/// An attempt that failed, and how long the server wants to be left alone.
pub struct Refused {
    pub error: HubError,
    pub asked: Option<Duration>,
}

impl From<HubError> for Refused {
    fn from(error: HubError) -> Self {
        Self { error, asked: None }
    }
}
