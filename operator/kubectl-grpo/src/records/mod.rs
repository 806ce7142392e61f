//! Sources of a run's records: a copied folder, a connection to its driver, or a connection to a short-lived reader
//! pod. All three give the same answers ([`grpo_records::look`]).

mod bulk;
mod reader;

pub use crate::pods::connection::PodConnection;
pub use reader::pod as reader_pod;

use self::bulk::BulkFiles;
use crate::arguments::RecordsOptions;
use crate::cluster::Cluster;
use crate::error::{Asking, Error};
use crate::pods::connection;
use crate::pods::serving::ServingPod;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use grpo_contracts::RunConfig;
use grpo_contracts::names::{ATTEMPT, ROLE, RUN, role};
use grpo_crds::GrpoRun;
use grpo_records::look::bulk::{BulkLimits, BulkRequest};
use grpo_records::look::entries::{EntriesOf, EntryPage, MetricsOf, MetricsPage};
use grpo_records::look::files::{FileAt, FilesOf, StoredFile};
use grpo_records::look::{
    Contents, EpisodeAt, EpisodePage, EpisodeView, EpisodesOf, Records, Refusal, RefusalCode, TurnsOf, routes,
};
use grpo_records::store::StoreError;
use grpo_records::{JudgedTurn, TurnRecord, paths};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use std::path::Path;
use std::time::Duration;

/// A reader pod that shows episodes ends after this time.
const DEADLINE: Duration = Duration::from_secs(600);

/// An open source of records.
pub enum Source {
    Folder(Records),
    Pod(PodConnection),
}

/// A file, piece by piece.
pub enum Pieces {
    Folder(BoxStream<'static, Result<Bytes, StoreError>>),
    Pod(connection::Pieces),
}

impl Pieces {
    /// `None` after the last piece.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        match self {
            Self::Folder(stream) => Ok(stream.next().await.transpose().map_err(Refusal::from)?),
            Self::Pod(pieces) => pieces.next().await,
        }
    }
}

impl Source {
    pub async fn contents(&mut self) -> Result<Contents, Error> {
        match self {
            Self::Folder(records) => Ok(records.contents()?),
            Self::Pod(connection) => connection.ask(routes::CONTENTS, &()).await,
        }
    }

    pub async fn episodes(&mut self, wanted: &EpisodesOf) -> Result<EpisodePage, Error> {
        match self {
            Self::Folder(records) => Ok(records.episodes(wanted)?),
            Self::Pod(connection) => connection.ask(routes::EPISODES, wanted).await,
        }
    }

    pub async fn episode(&mut self, path: &str) -> Result<EpisodeView, Error> {
        let wanted = EpisodeAt { path: path.to_owned() };
        match self {
            Self::Folder(records) => Ok(records.episode(path)?),
            Self::Pod(connection) => connection.ask(routes::EPISODE, &wanted).await,
        }
    }

    /// All turns, page by page.
    pub async fn turns(&mut self, path: &str) -> Result<Vec<TurnRecord>, Error> {
        Ok(self.turns_and_votes(path).await?.0)
    }

    /// The same, with the judge's votes on them.
    pub async fn turns_and_votes(&mut self, path: &str) -> Result<(Vec<TurnRecord>, Vec<JudgedTurn>), Error> {
        let (mut turns, mut judged) = (Vec::new(), Vec::new());
        let mut from = Some(0);
        while let Some(next) = from {
            let wanted = TurnsOf {
                path: path.to_owned(),
                from: next,
            };
            let page = match self {
                Self::Folder(records) => records.turns(&wanted)?,
                Self::Pod(connection) => connection.ask(routes::TURNS, &wanted).await?,
            };
            turns.extend(page.turns);
            judged.extend(page.judged);
            from = page.next;
        }
        Ok((turns, judged))
    }

    /// A page of the journal.
    pub async fn entries(&mut self, wanted: &EntriesOf) -> Result<EntryPage, Error> {
        match self {
            Self::Folder(records) => Ok(records.entries(wanted)?),
            Self::Pod(connection) => connection.ask(routes::ENTRIES, wanted).await,
        }
    }

    /// A page of the metrics of iterations and steps.
    pub async fn metrics(&mut self, wanted: &MetricsOf) -> Result<MetricsPage, Error> {
        match self {
            Self::Folder(records) => Ok(records.metrics(wanted)?),
            Self::Pod(connection) => connection.ask(routes::METRICS, wanted).await,
        }
    }

    /// All files below a folder, page by page. Those of episodes come scope by scope: a driver of an older version
    /// lists the whole folder for each page.
    pub async fn files(&mut self, folder: &str) -> Result<Vec<StoredFile>, Error> {
        if ![paths::ROLLOUTS, paths::EVALUATIONS].contains(&folder) {
            return self.files_below(folder.to_owned()).await;
        }
        let mut files = Vec::new();
        for scope in self.contents().await?.scopes {
            let scope = paths::scope(&scope);
            if scope.split('/').next() == Some(folder) {
                files.extend(self.files_below(scope).await?);
            }
        }
        Ok(files)
    }

    async fn files_below(&mut self, folder: String) -> Result<Vec<StoredFile>, Error> {
        let mut wanted = FilesOf { folder, after: None };
        let mut files = Vec::new();
        loop {
            let page = match self {
                Self::Folder(records) => records.files(&wanted)?,
                Self::Pod(connection) => connection.ask(routes::FILES, &wanted).await?,
            };
            files.extend(page.files);
            match page.next {
                Some(next) => wanted.after = Some(next),
                None => return Ok(files),
            }
        }
    }

    pub async fn file(&mut self, wanted: &FileAt) -> Result<Pieces, Error> {
        Ok(match self {
            Self::Folder(records) => Pieces::Folder(records.file(wanted)?.1.boxed()),
            Self::Pod(connection) => Pieces::Pod(connection.stream(routes::FILE, wanted).await?),
        })
    }

    /// The limits of a request for many files. `None` if there is no such request: a folder needs none, and a driver of
    /// an older version does not know it.
    pub async fn bulk_limits(&mut self) -> Result<Option<BulkLimits>, Error> {
        let Self::Pod(connection) = self else {
            return Ok(None);
        };
        match connection.ask(routes::BULK, &()).await {
            Err(Error::OlderDriver { .. }) => Ok(None),
            limits => limits.map(Some),
        }
    }

    /// Many files in one answer. `None` for a folder.
    pub async fn bulk(&mut self, wanted: &BulkRequest) -> Result<Option<BulkFiles>, Error> {
        match self {
            Self::Folder(_) => Ok(None),
            Self::Pod(connection) => Ok(Some(BulkFiles::of(connection.post(routes::BULK, wanted).await?))),
        }
    }

    /// A whole file, for files that fit into memory. `None` if it does not exist.
    pub async fn whole_file(&mut self, path: &str) -> Result<Option<Vec<u8>>, Error> {
        self.part(&FileAt::whole(path)).await
    }

    /// Some bytes of a file. `None` if it does not exist.
    pub async fn part(&mut self, wanted: &FileAt) -> Result<Option<Vec<u8>>, Error> {
        let mut pieces = match self.file(wanted).await {
            Err(Error::Records(refusal)) if refusal.code == RefusalCode::NotThere => return Ok(None),
            pieces => pieces?,
        };
        let mut bytes = Vec::new();
        while let Some(piece) = pieces.next().await? {
            bytes.extend_from_slice(&piece);
        }
        Ok(Some(bytes))
    }
}

/// A source, and the pod that must be deleted after use.
pub struct Opened {
    pub source: Source,
    reader: Option<ServingPod>,
}

impl Opened {
    /// True if a driver that works on the run gives the records.
    pub fn is_of_driver(&self) -> bool {
        matches!(self.source, Source::Pod(_)) && self.reader.is_none()
    }

    pub async fn close(self) -> Result<(), Error> {
        match self.reader {
            Some(reader) => reader.remove().await,
            None => Ok(()),
        }
    }
}

/// A copied store.
pub fn folder(dir: &Path) -> Result<Opened, Error> {
    if !dir.join(paths::JOURNAL).is_dir() {
        return Err(Error::NoStore { dir: dir.to_owned() });
    }
    Ok(Opened {
        source: Source::Folder(Records::open(dir).map_err(Refusal::from)?),
        reader: None,
    })
}

/// The records of a run in a cluster.
pub async fn of_run(cluster: &Cluster, name: &str, options: &RecordsOptions) -> Result<Opened, Error> {
    of_run_until(cluster, &cluster.run(name).await?, options, DEADLINE).await
}

/// The same for longer work: a reader pod ends after `deadline`.
pub async fn of_run_until(
    cluster: &Cluster,
    run: &GrpoRun,
    options: &RecordsOptions,
    deadline: Duration,
) -> Result<Opened, Error> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let drivers = drivers(cluster, &pods, run).await?;
    if let Some(driver) = drivers.iter().find(|pod| is_running(pod)) {
        let connection =
            PodConnection::of_pod(&pods, &cluster.namespace, &driver.name_any(), RunConfig::RECORDS_PORT).await?;
        return Ok(Opened {
            source: Source::Pod(connection),
            reader: None,
        });
    }
    let (reader, connection) = reader::start(cluster, run, drivers.first(), options, deadline).await?;
    Ok(Opened {
        source: Source::Pod(connection),
        reader: Some(reader),
    })
}

/// The run's driver pods, the newest attempt first.
async fn drivers(cluster: &Cluster, pods: &Api<Pod>, run: &GrpoRun) -> Result<Vec<Pod>, Error> {
    let selector = format!("{RUN}={},{ROLE}={}", run.name_any(), role::DRIVER);
    let mut found = pods
        .list(&ListParams::default().labels(&selector))
        .await
        .map_err(|error| listing_pods(cluster).failed(error))?
        .items;
    let attempt = |pod: &Pod| pod.labels().get(ATTEMPT).and_then(|number| number.parse::<u32>().ok());
    found.sort_by_key(|pod| std::cmp::Reverse(attempt(pod)));
    Ok(found)
}

/// The request to name in the error if pods may not be listed.
pub fn listing_pods(cluster: &Cluster) -> Asking<'_> {
    Asking {
        verb: "list",
        resource: "pods",
        namespace: Some(&cluster.namespace),
        name: "",
    }
}

fn is_running(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests;
