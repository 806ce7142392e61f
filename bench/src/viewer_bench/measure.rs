//! Times of a viewer's answers over HTTP, as its page asks for them.

use super::ViewerBenchError;
use futures::StreamExt;
use grpo_bench_report::Row;
use grpo_records::{Event, JournalEntry, SCHEMA, Writer, paths};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// Times of each view.
const ROUNDS: usize = 9;
/// The whole store is read within this time.
const READ_WITHIN: Duration = Duration::from_secs(1800);
/// Queries of one, two and three words, some of which no episode has.
const QUERIES: [&str; 8] = [
    "parser",
    "name_77",
    "wrong offset",
    "name_1234 parser",
    "git log oneline",
    "iter-000003 resolved",
    "nothing_has_this",
    "project__module-0007",
];

/// The program, and the store that it shows.
pub struct Place {
    pub viewer: PathBuf,
    pub store: PathBuf,
}

struct Viewer {
    child: Child,
    url: String,
    cookie: String,
    http: reqwest::Client,
}

impl Viewer {
    async fn start(place: &Place) -> Result<Self, ViewerBenchError> {
        let mut child = Command::new(&place.viewer)
            .arg("ui")
            .arg("--from")
            .arg(&place.store)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(ViewerBenchError::io("starting", &place.viewer))?;
        let out = child.stdout.take().ok_or_else(|| wrong("the viewer has no output"))?;
        let address = BufReader::new(out).lines().next_line().await;
        let address = address.map_err(ViewerBenchError::io("reading the output of", &place.viewer))?;
        let address = address.ok_or_else(|| wrong("the viewer ended without an address"))?;
        let (url, token) = address
            .split_once("/?token=")
            .ok_or_else(|| wrong("the viewer's address has no token"))?;
        let port = url.rsplit(':').next().unwrap_or_default();
        Ok(Self {
            cookie: format!("grpo-ui-{port}={token}"),
            url: url.to_owned(),
            child,
            http: reqwest::Client::builder().no_proxy().build().map_err(http)?,
        })
    }

    async fn get(&self, path: &str) -> Result<reqwest::Response, ViewerBenchError> {
        let request = self
            .http
            .get(format!("{}{path}", self.url))
            .header("cookie", &self.cookie);
        request
            .send()
            .await
            .and_then(reqwest::Response::error_for_status)
            .map_err(http)
    }

    async fn json(&self, path: &str) -> Result<Value, ViewerBenchError> {
        self.get(path).await?.json().await.map_err(http)
    }

    /// Milliseconds until the whole answer is here.
    async fn time(&self, paths: &[&str]) -> Result<f64, ViewerBenchError> {
        let began = Instant::now();
        for path in paths {
            self.get(path).await?.bytes().await.map_err(http)?;
        }
        Ok(began.elapsed().as_secs_f64() * 1e3)
    }
}

/// Starts a viewer of the store and measures it. The store gets further journal entries.
pub async fn measure(place: &Place, episodes: u64) -> Result<Vec<Row>, ViewerBenchError> {
    let began = Instant::now();
    let mut viewer = Viewer::start(place).await?;
    let first = [("/"), "/app.js", "/app.css", "/api/runs", "/api/0/run"];
    let cold = viewer.time(&first).await?;
    let run = loop {
        let run = viewer.json("/api/0/run").await?;
        if run["reading"] == false && run["end"].is_object() {
            break run;
        }
        waited(began)?;
    };
    let journal = began.elapsed();
    let found = loop {
        let found = viewer.json("/api/0/search?q=parser").await?;
        if found["read"] == found["ended"] {
            break found;
        }
        waited(began)?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let texts = began.elapsed();
    let path = found["found"][0]["path"]
        .as_str()
        .ok_or_else(|| wrong("no episode was found"))?;
    let scope = path.rsplit_once('/').map_or("", |(scope, _)| scope);
    let views = [
        ("scope", format!("/api/0/scope/{scope}")),
        ("group", format!("/api/0/group/{scope}/0")),
        ("episode", format!("/api/0/episode/{path}")),
        ("tokens", format!("/api/0/tokens/{path}")),
    ];
    let of = format!("{episodes} episodes");
    let mut rows = vec![
        Row::new(
            format!("1: first page of a viewer of {of}, with its data"),
            Some(median(&viewer, &first).await?),
            "ms",
            Some("<= 300"),
        ),
        Row::new("1: the same, before the journal was read", Some(cold), "ms", None),
        Row::new(
            format!("1: until the journal of {of} is read"),
            Some(journal.as_secs_f64()),
            "s",
            None,
        ),
        Row::new(
            format!("1: until the texts of {of} are searched"),
            Some(texts.as_secs_f64()),
            "s",
            None,
        ),
    ];
    for (name, path) in &views {
        rows.push(Row::new(
            format!("1: view of one {name}"),
            Some(median(&viewer, &[path]).await?),
            "ms",
            None,
        ));
    }
    let mut times = Vec::new();
    for at in 0..400 {
        let query = QUERIES[at % QUERIES.len()].replace(' ', "%20");
        times.push(viewer.time(&[&format!("/api/0/search?q={query}")]).await?);
    }
    times.sort_by(f64::total_cmp);
    rows.push(Row::new(
        "1: search, 99th percentile of 400",
        times.get(395).copied(),
        "ms",
        Some("<= 200"),
    ));
    rows.push(Row::new(
        "1: search, median of 400",
        times.get(200).copied(),
        "ms",
        None,
    ));
    let sequence = run["sequence"]
        .as_u64()
        .ok_or_else(|| wrong("the run has no entries"))?;
    rows.push(Row::new(
        "1: from a new entry to its announcement, longest of 9",
        Some(lag(&viewer, place, sequence).await?),
        "s",
        Some("<= 1"),
    ));
    rows.push(Row::new(
        "1: resident memory of the viewer",
        resident(&viewer),
        "MiB",
        None,
    ));
    viewer
        .child
        .kill()
        .await
        .map_err(ViewerBenchError::io("ending", &place.viewer))?;
    Ok(rows)
}

fn waited(since: Instant) -> Result<(), ViewerBenchError> {
    match since.elapsed() > READ_WITHIN {
        true => Err(wrong("the viewer has not read the store")),
        false => Ok(()),
    }
}

async fn median(viewer: &Viewer, paths: &[&str]) -> Result<f64, ViewerBenchError> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        times.push(viewer.time(paths).await?);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[ROUNDS / 2])
}

/// The longest time, in seconds, from a new journal entry to the event that announces it.
async fn lag(viewer: &Viewer, place: &Place, sequence: u64) -> Result<f64, ViewerBenchError> {
    let mut events = viewer.get("/events").await?.bytes_stream();
    let mut longest: f64 = 0.0;
    for at in 1..=ROUNDS as u64 {
        let entry = JournalEntry {
            schema: SCHEMA,
            writer: Writer::driver(1),
            sequence: sequence + at,
            at: 1_800_000_000,
            event: Event::DriverStarted { epoch: 1 },
        };
        let (file, json) = (
            place.store.join(paths::journal_entry(entry.sequence)),
            serde_json::to_vec(&entry)?,
        );
        let began = Instant::now();
        write_whole(&file, &json)?;
        loop {
            let event = events.next().await.ok_or_else(|| wrong("the stream of events ended"))?;
            event.map_err(http)?;
            if viewer.json("/api/0/run").await?["sequence"] == sequence + at {
                break;
            }
        }
        longest = longest.max(began.elapsed().as_secs_f64());
    }
    Ok(longest)
}

/// Writes a file that is whole once it has its name, as the driver does.
fn write_whole(file: &Path, bytes: &[u8]) -> Result<(), ViewerBenchError> {
    let staged = file.with_extension("staged");
    std::fs::write(&staged, bytes).map_err(ViewerBenchError::io("writing", &staged))?;
    std::fs::rename(&staged, file).map_err(ViewerBenchError::io("naming", file))
}

fn resident(viewer: &Viewer) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", viewer.child.id()?)).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib / 1024.0)
}

fn http(error: reqwest::Error) -> ViewerBenchError {
    wrong(&format!("asking the viewer: {error}"))
}

fn wrong(message: &str) -> ViewerBenchError {
    ViewerBenchError::Wrong(message.to_owned())
}
