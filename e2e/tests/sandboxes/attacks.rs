//! Tries every row of `attacks.yaml` as root, through the gateway: each attack is contained or reported.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::pool::{Pool, SANDBOXES, command, shell, task};
use crate::support::{Result, SOON, repository, rows};
use futures::{StreamExt, stream};
use grpo_driver::grade::Grader;
use grpo_driver::grader_worker::GraderWorker;
use grpo_driver::patch;
use grpo_driver::retry::{Budget, Pauses};
use grpo_driver::sandbox::Sandbox;
use grpo_driver::tasks::imports::NoImages;
use grpo_driver::tasks::selection::Selection;
use grpo_driver::tasks::{self, Task};
use grpo_records::{EpisodeEnd, Outcome};
use grpo_sandbox_protocol::{ExecResult, Killed, Priority, SandboxCause};
use grpo_testing::cluster;
use k8s_openapi::api::core::v1::Service;
use kube::api::{Api, ListParams};
use regex::Regex;
use serde::Deserialize;
use serde_json::json;

const ROWS: &str = include_str!("attacks.yaml");
/// Concurrent rows.
const AT_ONCE: usize = 8;
/// How often a sandbox is asked whether it works again, and the pause between.
const ALIVE_TRIES: u32 = 20;
const ALIVE_AGAIN: Duration = Duration::from_secs(1);
const TESTBED: &str = "/testbed";
/// In the gateway's pod nothing listens there, so a relay's requests wait.
const TAKES_NO_CONNECTION: &str = "http://127.0.0.1:9";
/// Makes a system call with numbers or texts; prints its answer and, after a failure, errno.
const PRELUDE: &str = r#"sys() { python3 -S -c "import ctypes, re, sys
values = [ctypes.c_long(int(x)) if re.match('-?[0-9]+$', x) else ctypes.c_char_p(x.encode()) for x in sys.argv[1:]]
answer = ctypes.CDLL(None, use_errno=True).syscall(*values)
print(answer, *([ctypes.get_errno()] if answer < 0 else []))" "$@"; }
"#;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
enum Verdict {
    Contained,
    Reported,
    /// Contained only where NetworkPolicies are enforced.
    NotHere,
}

/// How the command must end; exit code 0 if the row names nothing else.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ExpectedEnd {
    exit_code: Option<i32>,
    #[serde(default)]
    timed_out: bool,
    #[serde(default)]
    killed: Vec<Killed>,
    #[serde(default)]
    omits: bool,
    #[serde(default)]
    lost: Vec<SandboxCause>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    path: String,
    status: Option<u16>,
    times: Option<u32>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Row {
    r#try: String,
    script: String,
    #[serde(default)]
    shows: String,
    timeout: Option<u64>,
    #[serde(default)]
    alone: bool,
    #[serde(default)]
    relays: Vec<u16>,
    #[serde(default)]
    ends: ExpectedEnd,
    then: Option<String>,
    #[serde(default)]
    then_shows: String,
    then_user: Option<String>,
    then_activate: Option<String>,
    get: Option<File>,
    put: Option<File>,
    grade: Option<String>,
    fresh: Option<String>,
    #[serde(default)]
    fresh_shows: String,
    verdict: Verdict,
    how: String,
}

fn read() -> Vec<Row> {
    serde_yaml_ng::from_str(ROWS).unwrap()
}

/// `None`, or the difference from the row's pattern.
fn unlike(what: &str, pattern: &str, text: &str) -> Option<String> {
    let shown: String = text.chars().take(600).collect();
    (!Regex::new(pattern).unwrap().is_match(text)).then(|| format!("{what} does not match {pattern:?}: {shown:?}"))
}

impl Row {
    /// The difference between the command's end and the row's.
    fn wrong_end(&self, ended: &std::result::Result<ExecResult, SandboxCause>) -> Option<String> {
        let ends = &self.ends;
        let is_as_said = match ended {
            Err(cause) => ends.lost.contains(cause),
            Ok(result) => {
                let is_killed = result.killed.is_some_and(|killed| ends.killed.contains(&killed));
                let exits = ends
                    .exit_code
                    .or((!ends.timed_out && ends.killed.is_empty()).then_some(0));
                let only_lost = !ends.lost.is_empty() && ends.killed.is_empty();
                (is_killed || ends.killed.is_empty() && result.exit_code == exits)
                    && (!ends.timed_out || result.timed_out)
                    && (!ends.omits || result.omitted_bytes > 0)
                    && !only_lost
            }
        };
        (!is_as_said).then(|| format!("it ended so: {ended:?}").chars().take(800).collect())
    }
}

/// The pool, grader and task that the rows are tried on.
struct Range {
    pool: Pool,
    grader: Grader,
    task: Task,
    /// Replacements of the names in braces.
    names: BTreeMap<&'static str, String>,
}

impl Range {
    async fn new() -> Result<Self> {
        let limits = json!({"cpu": "1", "memory": "512Mi", "ephemeral-storage": "256Mi"});
        let spec = json!({"max": AT_ONCE * 2 + 2, "allowUnenforced": true, "resources": {"limits": limits}});
        let pool = Pool::new("hostile", spec).await?;
        let selection = Selection {
            format: grpo_crds::grpo_run::RowFormat::Compiled,
            instances: vec![task()?["instance_id"].as_str().unwrap().to_owned()],
            ..Selection::default()
        };
        let worker = GraderWorker::new(
            repository().join("rollout-image/grader/worker.py"),
            cluster::cache().join("grader-site"),
        );
        let set = tasks::load(
            "train",
            &selection,
            &[rows().join("train.jsonl")],
            &Default::default(),
            &worker,
            &NoImages,
        )
        .await?;
        let task = set.tasks[0].clone();
        let minutes = Duration::from_secs(120);
        let grader = Grader::new(
            pool.gateway()?,
            worker,
            minutes,
            Budget {
                request: minutes,
                total: minutes,
            },
            Pauses::doubling(Duration::from_secs(1), Duration::from_secs(30)),
            "hostile",
        )?;
        let services: Api<Service> = Api::all(pool.scene.client.clone());
        let address = async |namespace: &str, name: &str| -> Result<String> {
            let of = ListParams::default().fields(&format!("metadata.name={name},metadata.namespace={namespace}"));
            let found = services.list(&of).await?.items;
            let spec = found.into_iter().next().and_then(|service| service.spec);
            Ok(spec.and_then(|spec| spec.cluster_ip).ok_or("no such service")?)
        };
        let mut names = BTreeMap::new();
        names.insert("{api}", address("default", "kubernetes").await?);
        names.insert("{gateway}", address(&pool.scene.namespace, "pool-gateway").await?);
        let tests = task.row["FAIL_TO_PASS"].clone();
        let tests: Vec<String> = match tests.as_str() {
            Some(text) => serde_json::from_str(text)?,
            None => serde_json::from_value(tests)?,
        };
        names.insert("{tests}", tests.join(" "));
        Ok(Self {
            pool,
            grader,
            task,
            names,
        })
    }

    async fn lease(&self, id: &str) -> Result<Sandbox> {
        let gateway = self.pool.gateway()?;
        Ok(gateway.lease(id, &self.task.image, Priority::Agent, SOON).await?)
    }

    async fn address_of(&self, sandbox: &Sandbox) -> Result<String> {
        let pod = self.pool.pod(&sandbox.lease.sandbox).await?;
        Ok(pod.status.and_then(|status| status.pod_ip).ok_or("no address")?)
    }

    /// Tries a row; returns the differences from its expectations.
    async fn attempt(&self, number: usize, row: &Row) -> Result<Vec<String>> {
        let sandbox = self.lease(&format!("row-{number}")).await?;
        let (id, own) = (sandbox.id().to_owned(), self.address_of(&sandbox).await?);
        let mut script = PRELUDE.to_owned() + &row.script;
        for (name, value) in &self.names {
            script = script.replace(name, value);
        }
        let script = script.replace("{own}", &own);
        let mut wrong = Vec::new();
        for port in &row.relays {
            let url = format!("{}/v1/leases/{id}/relay", self.pool.url);
            let relay = json!({"port": port, "to": TAKES_NO_CONNECTION});
            self.pool.http.put(url).json(&relay).send().await?.error_for_status()?;
        }
        let ended = self
            .pool
            .exec(&id, &shell("try", &script, row.timeout.unwrap_or(30)))
            .await?;
        wrong.extend(row.wrong_end(&ended));
        if let Ok(result) = &ended {
            wrong.extend(unlike("what it printed", &row.shows, &result.output));
            wrong.extend(self.afterwards(&sandbox, row).await?);
        }
        sandbox.release().await;
        Ok(wrong)
    }

    async fn afterwards(&self, sandbox: &Sandbox, row: &Row) -> Result<Vec<String>> {
        let (id, mut wrong) = (sandbox.id(), Vec::new());
        if let Some(file) = &row.get {
            let answer = self.pool.http.get(self.file(id, file)).send().await?;
            let status = answer.status().as_u16();
            wrong.extend((Some(status) != file.status).then(|| format!("{} was answered {status}", file.path)));
        }
        if let Some(file) = &row.put {
            for _ in 0..file.times.unwrap_or(1) {
                let answer = self.pool.http.put(self.file(id, file)).body("graded").send().await?;
                let status = answer.status().as_u16();
                let is_wrong = file.status.is_some_and(|wanted| wanted != status);
                wrong.extend(is_wrong.then(|| format!("{} was answered {status}", file.path)));
            }
        }
        if let Some(then) = &row.then {
            let mut request = shell("then", then, 30);
            (request.user, request.activate) = (row.then_user.clone(), row.then_activate.clone());
            let result = self.pool.exec(id, &request).await?;
            let printed = result.map_or_else(|cause| format!("{cause:?}"), |result| result.output);
            wrong.extend(unlike("what came then", &row.then_shows, &printed));
        }
        wrong.extend(self.is_well(id).await?);
        if let Some(status) = &row.grade {
            wrong.extend(self.grade(sandbox, row, status).await?);
        }
        Ok(wrong)
    }

    /// The fault of a sandbox, after the row's leftovers have ended.
    async fn is_well(&self, id: &str) -> Result<Option<String>> {
        let mut last = String::new();
        for number in 0..ALIVE_TRIES {
            // No shell: by now it may be another program.
            let alive = command(&format!("alive-{number}"), &["cat", "/proc/1/comm"], 10);
            last = match self.pool.exec(id, &alive).await? {
                // Otherwise sandboxd may report that it has no room for a command.
                Ok(result) if result.output.contains("sandboxd") => return Ok(None),
                Ok(result) => result.output,
                Err(cause) => return Ok(Some(format!("afterwards its sandbox is gone: {cause:?}"))),
            };
            tokio::time::sleep(ALIVE_AGAIN).await;
        }
        Ok(Some(format!("afterwards its sandbox does not work: {last:?}")))
    }

    fn file(&self, id: &str, file: &File) -> String {
        format!("{}/v1/leases/{id}/files?path={}", self.pool.url, file.path)
    }

    /// As the driver does at the end of an episode.
    async fn grade(&self, sandbox: &Sandbox, row: &Row, status: &str) -> Result<Vec<String>> {
        let base = self.task.base_commit.as_deref().unwrap_or("HEAD");
        let mut take = command("take", &[], 60);
        take.argv = patch::take(TESTBED, base);
        let taken = sandbox.exec(&take).await?;
        let patch = sandbox
            .get_file(patch::PATCH_FILE)
            .await
            .map_err(|error| format!("{error}; {taken:?}"))?;
        let graded = self
            .grader
            .grade(
                &self.task,
                sandbox.id(),
                EpisodeEnd::Submitted,
                Some(&patch),
                async |graded| Ok(graded),
            )
            .await?;
        let found = graded.record.as_ref().map_or("none", |record| record.status.as_str());
        let mut wrong = Vec::new();
        if graded.outcome != Outcome::Unresolved || found != status {
            wrong.push(format!(
                "graded {:?}, {found}: {:?} {:?}",
                graded.outcome, graded.message, graded.log
            ));
        }
        if let Some(fresh) = &row.fresh {
            let other = self.lease(&format!("fresh-{}", sandbox.id())).await?;
            other.put_file(patch::PATCH_FILE, patch).await?;
            let mut apply = command("apply", &[], 60);
            apply.argv = patch::apply(TESTBED, base);
            other.exec(&apply).await?;
            other.exec(&command("away", &["rm", "-rf", "/tmp/grpo"], 60)).await?;
            let result = other.exec(&shell("fresh", fresh, 30)).await?;
            wrong.extend(unlike("a fresh sandbox", &row.fresh_shows, &result.output));
            other.release().await;
        }
        Ok(wrong)
    }
}

/// Figure 11.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a cluster: make test-sandboxes"]
async fn whatever_a_policy_tries_in_its_sandbox_is_contained_or_reported() -> Result<()> {
    let mut range = Range::new().await?;
    let neighbour = range.lease("neighbour").await?;
    let address = range.address_of(&neighbour).await?;
    range.names.insert("{neighbour}", address);
    let only = std::env::var("ONLY").ok().map(|text| Regex::new(&text)).transpose()?;
    let chosen = read().into_iter().enumerate();
    let chosen: Vec<(usize, Row)> = chosen
        .filter(|(_, row)| only.as_ref().is_none_or(|only| only.is_match(&row.r#try)))
        .collect();
    let range = &range;
    let mut tried = Vec::new();
    for (alone, at_once) in [(false, AT_ONCE), (true, 1)] {
        let these = chosen.iter().filter(|(_, row)| row.alone == alone);
        let tries = these.map(|(number, row)| async move {
            let began = Instant::now();
            let wrong = range.attempt(*number, row).await;
            let wrong = wrong.unwrap_or_else(|error| vec![error.to_string()]);
            (row, began.elapsed(), wrong)
        });
        let results: Vec<(&Row, Duration, Vec<String>)> = stream::iter(tries).buffer_unordered(at_once).collect().await;
        tried.extend(results);
    }
    for (row, took, wrong) in &tried {
        let verdict = if wrong.is_empty() {
            format!("{:?}", row.verdict)
        } else {
            "WRONG".to_owned()
        };
        println!("{:>6.1}s  {verdict:<10} {}", took.as_secs_f64(), row.r#try);
        wrong.iter().for_each(|wrong| println!("         {wrong}"));
    }
    let alive = neighbour.exec(&command("alive", &["cat", "/proc/1/comm"], 10)).await?;
    assert_eq!(alive.output, "sandboxd\n", "the neighbour of all of them");
    let wrong = tried.iter().filter(|(_, _, wrong)| !wrong.is_empty()).count();
    assert_eq!(wrong, 0, "{wrong} of {} rows are not as they say", tried.len());
    range.pool.scene.say(&format!("{} rows are as they say", tried.len()));
    neighbour.release().await;
    let none = |there: &cluster::wait::Objects<_>| there.is_empty().then_some(());
    range
        .pool
        .scene
        .until_pods(SANDBOXES, SOON, "no sandbox left", none)
        .await?;
    range.pool.scene.clear().await
}

/// The book's page shows these rows. `UPDATE_BOOK=1 cargo test -p grpo-e2e sandboxes::attacks` rewrites it.
#[test]
fn the_books_table_of_attacks_is_what_is_tried() {
    let page = repository().join("docs/src/sandbox-attacks.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let (before, _) = text.split_once("| Tried |").unwrap();
    let rows = read();
    assert!(rows.len() >= 70, "figure 11 wants that many");
    let mut wanted = format!("{before}| Tried | What becomes of it | How |\n|---|---|---|\n");
    for row in rows {
        let verdict = match row.verdict {
            Verdict::Contained => "contained",
            Verdict::Reported => "reported",
            Verdict::NotHere => "**not here**",
        };
        let cell = |text: &str| text.replace('|', "\\|");
        wanted += &format!("| {} | {verdict} | {} |\n", cell(&row.r#try), cell(&row.how));
    }
    if std::env::var_os("UPDATE_BOOK").is_some() {
        std::fs::write(&page, &wanted).unwrap();
    } else {
        assert_eq!(
            text,
            wanted,
            "{} is out of date; UPDATE_BOOK=1 writes it anew",
            page.display()
        );
    }
}
