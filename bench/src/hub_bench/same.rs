//! Figure 1: the same faults for our client and for the hub's own. Both must end with the bytes of one commit, show no
//! partial file, and continue after a kill.

use super::clients::{Client, Job, Programs, REPOSITORY};
use super::{HUB_CLIENT, HubBenchError};
use grpo_bench_report::Row;
use grpo_hub::Repository;
use grpo_hub::played::{Content, Damage, PlayedHub};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

const LARGE: usize = 8 << 20;
const SMALL: [(&str, usize); 3] = [
    ("config.json", 300),
    ("tokenizer.json", 40_000),
    ("a/deep/one.json", 20),
];
const TOKEN: &str = "a-token";
/// Starts of a client in one case: the hub's own client ends at some faults and continues when it is started again.
const STARTS: usize = 8;
const LOOK: Duration = Duration::from_millis(10);
const STALLS_AT: usize = 1 << 20;

/// A case: its name, the faults in answers with files and in answers of the API, and concurrent events.
struct Case {
    name: &'static str,
    of_files: Vec<Damage>,
    of_api: Vec<Damage>,
    gated: bool,
    moves: bool,
    kills: bool,
}

impl Case {
    fn plain(name: &'static str) -> Self {
        Self {
            name,
            of_files: Vec::new(),
            of_api: Vec::new(),
            gated: false,
            moves: false,
            kills: false,
        }
    }
}

fn cases() -> Vec<Case> {
    let of_files = |name, faults: &[Damage]| Case {
        of_files: faults.to_vec(),
        ..Case::plain(name)
    };
    vec![
        Case::plain("redirects and LFS"),
        Case {
            gated: true,
            ..Case::plain("gated")
        },
        Case {
            moves: true,
            ..Case::plain("a branch that moves meanwhile")
        },
        of_files(
            "5xx of files",
            &[Damage::Status(503), Damage::Status(500), Damage::Status(502)],
        ),
        Case {
            of_api: vec![Damage::Status(503), Damage::Status(502)],
            ..Case::plain("5xx of the API")
        },
        of_files("429", &[Damage::Status(429), Damage::Status(429)]),
        of_files(
            "cut connections",
            &[
                Damage::Cut(100),
                Damage::Cut(700_000),
                Damage::Cut(3_000_000),
                Damage::Cut(5),
            ],
        ),
        of_files(
            "ranges that are ignored",
            &[Damage::Cut(2_000_000), Damage::IgnoreRange, Damage::IgnoreRange],
        ),
        Case {
            of_files: vec![Damage::Stall(STALLS_AT); 4],
            kills: true,
            ..Case::plain("killed in the middle")
        },
    ]
}

fn files(seed: u8) -> BTreeMap<String, Vec<u8>> {
    let bytes = |count: usize| (0..count).map(|at| seed.wrapping_add((at % 251) as u8)).collect();
    let small = SMALL.iter().map(|(name, count)| ((*name).to_owned(), bytes(*count)));
    small.chain([("model.safetensors".to_owned(), bytes(LARGE))]).collect()
}

fn contents(files: &BTreeMap<String, Vec<u8>>) -> BTreeMap<String, Content> {
    let content = |(path, bytes): (&String, &Vec<u8>)| match bytes.len() < LARGE {
        true => (path.clone(), Content::Small(bytes.clone().into())),
        false => (path.clone(), Content::Large(bytes.clone().into())),
    };
    files.iter().map(content).collect()
}

/// The result of a client in a case.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    /// All files of the first commit, with its bytes, and no others.
    right: bool,
    /// Named files with bytes that differ from the commit's, seen at any start.
    partial: usize,
    starts: usize,
}

/// The rows of the figure.
pub async fn measure(programs: &Programs, work: &Path) -> Result<Vec<Row>, HubBenchError> {
    let (mut right, mut partial, mut starts) = ([0; 2], [0; 2], [0; 2]);
    let all = cases();
    for case in &all {
        for (at, client) in [Client::Ours, Client::HubClient { workers: 8 }].into_iter().enumerate() {
            let found = tried(case, client, programs, work).await?;
            eprintln!("  {}: {}: {found:?}", case.name, client.name());
            right[at] += usize::from(found.right);
            partial[at] += found.partial;
            starts[at] += found.starts;
        }
    }
    let row = |what: &str, [ours, peer]: [usize; 2], bar: Option<String>| {
        let row = Row::new(format!("1: {what}"), Some(ours as f64), "", bar.as_deref());
        row.beside(HUB_CLIENT, peer as f64)
    };
    Ok(vec![
        row(
            &format!("cases of {} with the commit's bytes", all.len()),
            right,
            Some(format!(">= {}", all.len())),
        ),
        row("partial files under a file's name", partial, Some("<= 0".to_owned())),
        row("starts of the program in all cases", starts, None),
    ])
}

async fn tried(case: &Case, client: Client, programs: &Programs, work: &Path) -> Result<Found, HubBenchError> {
    let folder = work.join("same");
    let made = std::fs::remove_dir_all(&folder)
        .or(Ok(()))
        .and_then(|()| std::fs::create_dir_all(&folder));
    made.map_err(HubBenchError::io("making", &folder))?;
    let played = PlayedHub::start()
        .await
        .map_err(HubBenchError::io("starting", "the simulated hub"))?;
    let (repository, wanted) = (Repository::model(REPOSITORY), files(1));
    let commit = played.push(&repository, "main", contents(&wanted)).to_string();
    if case.gated {
        played.gate(&repository, TOKEN);
    }
    played.spoil_files(case.of_files.clone());
    played.spoil_api(case.of_api.clone());
    let job = Job {
        programs,
        endpoint: &played.endpoint,
        token: case.gated.then_some(TOKEN),
        folder: &folder,
    };
    let (mut starts, mut partial) = (0, 0);
    let moved = files(2);
    let mut look = |named: &BTreeMap<(String, String), Vec<u8>>| {
        let of = |at: &String| if *at == commit { &wanted } else { &moved };
        let is_wrong = |((at, path), bytes): &(&(String, String), &Vec<u8>)| of(at).get(path) != Some(bytes);
        partial += named.iter().filter(is_wrong).count();
    };
    if case.moves || case.kills {
        starts += 1;
        let mut child = client.start(&job, &[])?;
        let asked = |host: &str| played.requests().iter().any(|request| request.host == host);
        if case.kills {
            while !at_stall(&folder) {
                tokio::time::sleep(LOOK).await;
            }
            child
                .kill()
                .await
                .map_err(HubBenchError::io("killing", client.name()))?;
            played.forgive();
        } else {
            while !asked("files") {
                tokio::time::sleep(LOOK).await;
            }
            played.push(&repository, "main", contents(&moved));
            child
                .wait()
                .await
                .map_err(HubBenchError::io("waiting for", client.name()))?;
        }
        look(&client.named(&folder));
    }
    let done = |named: &BTreeMap<(String, String), Vec<u8>>| {
        let of = |path: &String| named.get(&(commit.clone(), path.clone()));
        wanted.iter().all(|(path, bytes)| of(path) == Some(bytes))
    };
    while !done(&client.named(&folder)) && starts < STARTS {
        starts += 1;
        client.run(&job, &[]).await?;
        look(&client.named(&folder));
    }
    let named = client.named(&folder);
    // A client that is started again after its end may take the newest commit.
    let right = done(&named) && named.keys().filter(|(at, _)| *at == commit).count() == wanted.len();
    Ok(Found { right, partial, starts })
}

/// Whether an unfinished file has arrived where the server stalls.
fn at_stall(folder: &Path) -> bool {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(found) = entry.metadata() else { continue };
            if found.is_dir() {
                folders.push(entry.path());
            } else if found.len() >= STALLS_AT as u64 {
                return true;
            }
        }
    }
    false
}
