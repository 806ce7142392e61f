//! `kubectl grpo ui`: a viewer of runs in the browser.
//!
//! Records come from the same sources as those of `kubectl grpo show`: a copied folder, a driver that runs, or a reader
//! pod. [`index`] folds the journal, [`views`] makes the views of a scope, a group, an episode; [`wire`] are their
//! types, [`server`] serves them on loopback, and [`bundle`] writes them to files. The page is in `operator/viewer`.

pub mod advantages;
pub mod assets;
pub mod bundle;
pub mod files;
pub mod flags;
pub mod index;
mod kept_scopes;
pub mod server;
pub mod shown;
pub mod tokens;
pub mod trained;
pub mod viewed;
pub mod views;
pub mod wanted;
pub mod wire;
pub mod words;

use self::server::Shown;
use self::viewed::{Place, Viewed};
use crate::arguments::ClusterOptions;
use crate::arguments::ui::Ui;
use crate::cluster::Cluster;
use crate::error::Error;
use crate::output;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Shows runs until Ctrl-C, or writes a bundle.
pub async fn ui(options: &ClusterOptions, wanted: &Ui) -> Result<(), Error> {
    let mut runs = Vec::new();
    let shown = async {
        for place in places(options, wanted).await? {
            runs.push(Arc::new(Viewed::open(place).await?));
        }
        match &wanted.bundle {
            Some(dest) => write_bundle(&runs, dest).await,
            None => match until_interrupted(serve(&runs, wanted)).await {
                Err(Error::Interrupted) => Ok(()),
                served => served,
            },
        }
    };
    let shown = shown.await;
    // Also after an error, and also if requests still hold a run: its reader pod is deleted here.
    let mut closed = Ok(());
    for run in &runs {
        closed = closed.and(run.close().await);
    }
    shown.and(closed)
}

async fn write_bundle(runs: &[Arc<Viewed>], dest: &Path) -> Result<(), Error> {
    let work = async {
        for run in runs {
            run.catch_up().await?;
        }
        bundle::write(runs, dest).await
    };
    let written = until_interrupted(work).await?;
    Ok(output::write(Path::new("-"), &written.in_words(dest))?)
}

async fn until_interrupted<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    tokio::select! {
        done = work => done,
        _ = tokio::signal::ctrl_c() => Err(Error::Interrupted),
    }
}

async fn places(options: &ClusterOptions, wanted: &Ui) -> Result<Vec<Place>, Error> {
    let mut places: Vec<Place> = wanted.from.iter().cloned().map(Place::Folder).collect();
    if wanted.runs.is_empty() {
        return Ok(places);
    }
    let cluster = Cluster::connect(options).await?;
    places.extend(wanted.runs.iter().map(|name| Place::Run {
        cluster: cluster.clone(),
        name: name.clone(),
        reader_image: wanted.reader_image.clone(),
    }));
    Ok(places)
}

/// On loopback only: other machines do not reach the records. 0: any free port.
pub async fn listen(port: u16) -> Result<(TcpListener, SocketAddr), Error> {
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let listening =
        |why: std::io::Error| Error::Viewer(format!("cannot listen on {at}: {why}; --port takes another port"));
    let listener = TcpListener::bind(at).await.map_err(listening)?;
    let at = listener.local_addr().map_err(listening)?;
    Ok((listener, at))
}

async fn serve(runs: &[Arc<Viewed>], wanted: &Ui) -> Result<(), Error> {
    let (listener, at) = listen(wanted.port).await?;
    let shown = Arc::new(Shown {
        runs: runs.to_vec(),
        token: hex::encode(rand::random::<[u8; 16]>()),
        at,
    });
    output::write(Path::new("-"), &format!("http://{at}/?token={}\n", shown.token))?;
    eprintln!("Open this address in a browser of this machine. Ctrl-C ends the viewer.");
    // On threads of their own: reading a folder of 100,000 files must not keep the browser waiting. Dropping the set
    // ends them.
    let mut following = JoinSet::new();
    for run in runs {
        let run = run.clone();
        following.spawn(async move { run.follow().await });
    }
    let served = axum::serve(listener, server::router(shown)).await;
    served.map_err(|error| Error::Viewer(error.to_string()))
}
