//! `kubectl grpo ui` as a process beside a run of another test: through the driver while the run works, afterwards
//! through a reader pod.
//!
//! It asks as the page does: the stream of events says that something has changed, and then a view is loaded. The time
//! at which an entry of the journal was written is that of its file.

use crate::operator::until;
use crate::support::plugin::READERS;
use crate::support::{RUN_LIMIT, Result, SOON, Scene};
use futures::StreamExt;
use grpo_records::{Event, JournalEntry, paths};
use grpo_testing::cluster::{kubeconfig_path, wait};
use grpo_testing::program;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::header::{CONTENT_DISPOSITION, COOKIE, SET_COOKIE};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

/// Half of the entries must be shown within this time after they were written. It is a second on a machine with time to
/// spare; here two cores also sample, grade and train, and entries come in bursts.
const SHOWN_WITHIN: Duration = Duration::from_secs(3);
/// A part of each episode's name.
const ANY: &str = "__i";

/// The page of the viewer.
#[derive(Clone)]
struct Page {
    http: reqwest::Client,
    base: String,
    cookie: String,
}

/// What the view of the run had.
#[derive(Clone, Copy, Debug)]
struct Snapshot {
    at: SystemTime,
    sequence: u64,
    /// Earlier entries were still being read.
    is_reading: bool,
    iterations: usize,
    verdicts: u64,
}

/// A viewer of one run.
pub struct Viewer {
    process: Child,
    page: Page,
    seen: Arc<Mutex<Vec<Snapshot>>>,
    watching: JoinHandle<Result<()>>,
}

/// What a viewer showed while its run worked.
pub struct Watched(Vec<Snapshot>);

impl Page {
    fn request(&self, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.get(format!("{}/{path}", self.base));
        request.header(COOKIE, &self.cookie)
    }

    async fn json(&self, path: &str) -> Result<Value> {
        let answer = self.request(path).send().await?.error_for_status()?;
        Ok(answer.json().await?)
    }

    async fn search(&self, words: &str) -> Result<Value> {
        let request = self.request("api/0/search").query(&[("q", words)]);
        Ok(request.send().await?.error_for_status()?.json().await?)
    }

    /// Notes what the run's view has after each event.
    async fn watch(self, seen: Arc<Mutex<Vec<Snapshot>>>) -> Result<()> {
        let mut events = self.request("events").send().await?.bytes_stream();
        while let Some(event) = events.next().await {
            event?;
            let run = self.json("api/0/run").await?;
            let at = SystemTime::now();
            let lines = |of: &str| run[of].as_array().cloned().unwrap_or_default();
            let verdicts = |of: &str| -> u64 { lines(of).iter().filter_map(|line| line["verdicts"].as_u64()).sum() };
            let shown = Snapshot {
                at,
                sequence: run["sequence"].as_u64().unwrap_or_default(),
                is_reading: run["reading"] == true,
                iterations: lines("iterations").len(),
                verdicts: verdicts("iterations") + verdicts("evaluations"),
            };
            seen.lock().unwrap_or_else(PoisonError::into_inner).push(shown);
        }
        Ok(())
    }
}

impl Viewer {
    /// Starts it, and opens its address as a browser does.
    pub async fn start(scene: &Scene, run: &str) -> Result<Self> {
        let program = program("kubectl-grpo").ok_or("kubectl-grpo is not built: make build")?;
        let mut process = Command::new(program)
            .args(["ui", run, "--namespace", &scene.namespace, "--kubeconfig"])
            .arg(kubeconfig_path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = process.stdout.take().ok_or("the viewer has no output")?;
        let mut address = String::new();
        tokio::time::timeout(SOON, BufReader::new(output).read_line(&mut address)).await??;
        let (base, _) = address.split_once("/?token=").ok_or("the viewer printed no address")?;
        let http = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()?;
        let entered = http.get(address.trim()).send().await?;
        let cookie = entered.headers().get(SET_COOKIE).ok_or("the viewer gave no cookie")?;
        let cookie = cookie.to_str()?.split(';').next().unwrap_or_default();
        let page = Page {
            http,
            base: base.to_owned(),
            cookie: cookie.to_owned(),
        };
        let seen = Arc::new(Mutex::new(Vec::new()));
        let watching = tokio::spawn(page.clone().watch(Arc::clone(&seen)));
        scene.say(&format!("a viewer serves at {base}"));
        Ok(Self {
            process,
            page,
            seen,
            watching,
        })
    }

    /// Waits for an episode that ends after the first search, finds it by a word of its texts, and saves its files.
    /// Returns its folder.
    pub async fn finds_the_next_episode(&self, scene: &Scene) -> Result<String> {
        let page = &self.page;
        let before = page.search(ANY).await?["ended"].as_u64();
        let path = until(RUN_LIMIT, "another episode to end", async || {
            let now = page.search(ANY).await.map_err(|error| error.to_string())?;
            // The newest comes first.
            let newest = now["found"][0]["path"].as_str();
            match newest.filter(|_| now["ended"].as_u64() > before) {
                Some(path) => Ok(path.to_owned()),
                None => Err(now.to_string()),
            }
        })
        .await?;
        let episode = page.json(&format!("api/0/episode/{path}")).await?;
        let word = word_of(&episode, &path).ok_or(format!("{path} has no text"))?;
        until(SOON, "its text to be found", async || {
            let found = page.search(&format!("{word} {path}")).await;
            let found = found.map_err(|error| error.to_string())?;
            match found["all"].as_u64() {
                Some(1) => Ok(()),
                _ => Err(found.to_string()),
            }
        })
        .await?;
        let (scope, _) = path.rsplit_once('/').ok_or("an episode has a scope")?;
        for (file, name, part) in [
            (format!("atif/{path}"), ".atif.json", "\"steps\""),
            (format!("predictions/{scope}"), ".predictions.jsonl", "\"model_patch\""),
        ] {
            let answer = page.request(&format!("api/0/export/{file}")).send().await?;
            let answer = answer.error_for_status()?;
            let saved = answer
                .headers()
                .get(CONTENT_DISPOSITION)
                .ok_or("a download has no name")?;
            assert!(saved.to_str()?.contains(name), "{file}: {saved:?}");
            let text = answer.text().await?;
            assert!(text.contains(part), "{file}: {text}");
        }
        scene.say(&format!("the viewer found {word:?} in {path} and saved its files"));
        Ok(path)
    }

    /// After the run's end the same address shows an episode through a reader pod, which is deleted with the viewer.
    pub async fn outlives_the_run(mut self, scene: &Scene, episode: &str) -> Result<Watched> {
        let runs = |pod: &&Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
        let reader = |there: &wait::Objects<Pod>| there.values().find(runs).map(|pod| pod.name_any());
        let reader = scene
            .until_pods(READERS, SOON, "the viewer's reader pod", reader)
            .await?;
        let page = &self.page;
        until(
            SOON,
            "the reader pod to show the run's end and an episode",
            async || {
                let detail = page.json(&format!("api/0/episode/{episode}")).await;
                detail.map_err(|error| error.to_string())?;
                let run = page.json("api/0/run").await.map_err(|error| error.to_string())?;
                let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                let is_seen = seen.last().map(|shown| shown.sequence) == run["sequence"].as_u64();
                match &run["end"]["succeeded"] {
                    Value::Bool(true) if is_seen => Ok(()),
                    _ if self.watching.is_finished() => Err("the stream of events ended".to_owned()),
                    _ => Err(run["end"].to_string()),
                }
            },
        )
        .await?;
        let process = self.process.id().ok_or("the viewer has ended by itself")?;
        kill(Pid::from_raw(i32::try_from(process)?), Signal::SIGINT)?;
        let ended = tokio::time::timeout(SOON, self.process.wait()).await??;
        assert!(ended.success(), "the viewer ended with {ended}");
        self.watching.abort();
        let gone = |there: &wait::Objects<Pod>| there.is_empty().then_some(());
        scene
            .until_pods(READERS, SOON, "the reader pod to be gone", gone)
            .await?;
        scene.say(&format!("{reader} showed the ended run, and went with the viewer"));
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Watched(seen.clone()))
    }
}

impl Watched {
    /// Iterations and episodes grew, and entries were shown soon after they were written. `store`: the folder of a copy
    /// of the run's store, with the times of its files.
    pub fn shows_the_run_live(&self, scene: &Scene, store: &Path, journal: &[JournalEntry]) -> Result<()> {
        let begun = self.0.iter().find(|shown| shown.sequence > 0 && !shown.is_reading);
        let (first, last) = (
            begun.ok_or("the viewer showed nothing")?,
            self.0.last().ok_or("nothing")?,
        );
        let counts: BTreeSet<u64> = self.0.iter().map(|shown| shown.verdicts).collect();
        assert!(counts.len() > 3, "episodes appear one after another: {counts:?}");
        assert!(
            first.iterations < last.iterations,
            "iterations appear: {first:?}, {last:?}"
        );

        let written = |entry: &JournalEntry| -> Result<SystemTime> {
            Ok(store
                .join(paths::journal_entry(entry.sequence))
                .metadata()?
                .modified()?)
        };
        let end = journal
            .iter()
            .find(|entry| matches!(entry.event, Event::RunFinished { .. }));
        // The driver ends behind its last entries, so these may be shown by the reader pod only.
        let until = written(end.ok_or("the journal has no end")?)? - SHOWN_WITHIN;
        let mut lags = Vec::new();
        for entry in journal {
            let at = written(entry)?;
            if at < first.at || at > until {
                continue;
            }
            let shown = self.0.iter().find(|shown| shown.sequence >= entry.sequence);
            let shown = shown.ok_or(format!("entry {} was never shown", entry.sequence))?;
            lags.push(shown.at.duration_since(at).unwrap_or_default());
        }
        lags.sort();
        assert!(lags.len() >= 10, "only {} entries were written meanwhile", lags.len());
        let of_100 = |share: usize| lags[(lags.len() * share).div_ceil(100) - 1];
        scene.say(&format!(
            "the viewer showed {} entries: half of them within {:.2} s, 95 of 100 within {:.2} s, the slowest after {:.2} s",
            lags.len(),
            of_100(50).as_secs_f64(),
            of_100(95).as_secs_f64(),
            of_100(100).as_secs_f64()
        ));
        assert!(of_100(50) <= SHOWN_WITHIN, "entries were shown late: {lags:?}");
        Ok(())
    }
}

/// A word of the episode's texts that is neither in its folder nor an outcome: only a search in texts finds it.
fn word_of(episode: &Value, path: &str) -> Option<String> {
    let turns = episode["turns"].as_array()?;
    let texts = turns
        .iter()
        .flat_map(|turn| [turn["observation"]["text"].as_str(), turn["text"]["text"].as_str()]);
    let mut words = texts
        .flatten()
        .flat_map(|text| text.split(|character: char| !(character.is_alphanumeric() || character == '_')));
    let elsewhere = format!("{} unresolved", path.to_lowercase());
    let fits = |word: &&str| {
        (4..=20).contains(&word.len())
            && word.bytes().all(|byte| byte.is_ascii_alphabetic())
            && !elsewhere.contains(&word.to_lowercase())
    };
    words.find(fits).map(str::to_owned)
}
