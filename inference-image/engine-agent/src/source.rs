//! Where a pull gets its bytes: the client for drivers and other agents, and why a version is not on disk.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use grpo_auth::TokenFile;
use reqwest::{Client, RequestBuilder, StatusCode};

use crate::cache::BadName;
use crate::chunks::Shelf;
use crate::engine::wire::causes;
use crate::metrics::Pulled;

/// A pull gives up on a source that sends nothing for this long; the next attempt resumes where this one ended.
const STALL: Duration = Duration::from_secs(30);

/// Why a version is not on local disk.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    #[error("GET {url}: {cause}; is the driver of the run up, and reachable from this pod?")]
    Unreachable { url: String, cause: String },
    #[error("GET {url} was answered {status}; does the run's store still hold this version?")]
    Refused { url: String, status: StatusCode },
    #[error(
        "{url} has sha256 {found}, the order says {expected}; the order is for another manifest, or the store was changed"
    )]
    WrongManifest {
        url: String,
        expected: String,
        found: String,
    },
    #[error("{url} is not a manifest: {cause}")]
    NoManifest { url: String, cause: String },
    #[error("{url} is of version {found}, ordered was {expected}")]
    WrongVersion {
        url: String,
        expected: String,
        found: String,
    },
    #[error(
        "{url} has sha256 {found} over {bytes} bytes, its manifest says {expected}; it was thrown away and will be fetched again"
    )]
    WrongFile {
        url: String,
        bytes: u64,
        expected: String,
        found: String,
    },
    #[error("{url} ended after {found} of {expected} bytes; the next attempt resumes from there")]
    Short { url: String, found: u64, expected: u64 },
    #[error("{url} sends more than the {expected} bytes its manifest says")]
    Long { url: String, expected: u64 },
    #[error(
        "{url} was asked for a part of the file and sends all of it; the driver of a run answers ranges: is this one?"
    )]
    NoRanges { url: String },
    #[error(transparent)]
    BadName(#[from] BadName),
    #[error("writing {path}: {cause}; is the volume full?")]
    Disk { path: String, cause: io::Error },
}

/// A client for pulling, with this pod's tokens for drivers and for other agents. It gives up on silence, not on size.
#[derive(Clone, Debug)]
pub struct PullClient {
    http: Client,
    /// Never through a proxy: agents are pods of the same pool.
    direct: Client,
    drivers: TokenFile,
    agents: TokenFile,
    /// What this agent passes on while it pulls.
    pub(crate) shelf: Shelf,
    pub(crate) pulled: Pulled,
    /// The version of which chunks of other agents were wrong.
    distrusted: Arc<Mutex<Option<String>>>,
    /// The last version whose delta was cut, how often, and whether it is fetched without its delta from now on.
    cut: Arc<Mutex<(String, u32, bool)>>,
}

impl PullClient {
    pub fn new(drivers: TokenFile, agents: TokenFile, shelf: Shelf, pulled: Pulled) -> reqwest::Result<Self> {
        let patient = || {
            let client = Client::builder().connect_timeout(Duration::from_secs(5));
            client.read_timeout(STALL)
        };
        Ok(Self {
            http: patient().build()?,
            direct: patient().no_proxy().build()?,
            drivers,
            agents,
            shelf,
            pulled,
            distrusted: Arc::default(),
            cut: Arc::default(),
        })
    }

    /// A request to a driver.
    pub(crate) fn for_source(&self, url: &str) -> RequestBuilder {
        self.drivers.put_on(self.http.get(url))
    }

    /// A request to another agent.
    pub(crate) fn for_agent(&self, url: &str) -> RequestBuilder {
        self.agents.put_on(self.direct.get(url))
    }

    /// From now on all of a version comes from its source.
    pub(crate) fn distrust(&self, version: &str) {
        *self.distrusted.lock().unwrap_or_else(PoisonError::into_inner) = Some(version.to_owned());
    }

    /// The transfer of a version's delta was cut; how often so far.
    pub(crate) fn delta_was_cut(&self, version: &str) -> u32 {
        self.with_cuts(version, |(_, times, _)| {
            *times += 1;
            *times
        })
    }

    /// From now on a version is fetched without its delta.
    pub(crate) fn give_up_delta(&self, version: &str) {
        self.with_cuts(version, |(.., gave_up)| *gave_up = true);
    }

    pub(crate) fn gave_up_delta(&self, version: &str) -> bool {
        let cut = self.cut.lock().unwrap_or_else(PoisonError::into_inner);
        cut.0 == version && cut.2
    }

    fn with_cuts<T>(&self, version: &str, of: impl FnOnce(&mut (String, u32, bool)) -> T) -> T {
        let mut cut = self.cut.lock().unwrap_or_else(PoisonError::into_inner);
        if cut.0 != version {
            *cut = (version.to_owned(), 0, false);
        }
        of(&mut cut)
    }

    pub(crate) fn distrusts(&self, version: &str) -> bool {
        let distrusted = self.distrusted.lock().unwrap_or_else(PoisonError::into_inner);
        distrusted.as_deref() == Some(version)
    }
}

pub(crate) fn unreachable(url: &str) -> impl Fn(reqwest::Error) -> PullError + '_ {
    move |error| PullError::Unreachable {
        url: url.to_owned(),
        cause: causes(&error),
    }
}

pub(crate) fn disk(path: &Path) -> impl Fn(io::Error) -> PullError + '_ {
    move |cause| PullError::Disk {
        path: path.display().to_string(),
        cause,
    }
}
