//! Measures whether the policy improves through an agent: unmodified qwen-code, the tools with pdb, or bash with the
//! edit tool. Three runs, one after the other:
//!
//! 1. `-script`: mode Evaluate on a server of text, the recorded script. It plays the agent on the fixed tasks.
//! 2. `-warm`: mode Finetune on the recorded conversations, from the demo's model with more positions and a chat
//!    template that has tools.
//! 3. `-grpo`: mode Train with these weights, measured on the same tasks before the first and after the last step.
//!
//! The second and third run share a claim, because a run resumes another one's weights in its own store. Claims and
//! finished stores stay until the measurement is complete, so a stopped program continues with the next run, also in a
//! new cluster.

use super::{DELETE_LIMIT, Options, base, finished, print, run_within};
use grpo_bench_report::Bench;
use grpo_crds::GrpoRun;
use grpo_crds::grpo_run::Phase;
use grpo_demo::agents::{self, Recording};
use grpo_demo::arms::SET;
use grpo_demo::follow::phase_of;
use grpo_demo::learning;
use grpo_demo::tasks::Tasks;
use grpo_demo::teacher::server::{self, MODEL};
use grpo_demo::teacher::{Agent, Teacher};
use grpo_records::folder::RunFolder;
use grpo_testing::cluster::manifest::{RunManifest, delete_run};
use grpo_testing::cluster::{self, volume};
use kube::Client;
use kube::api::Api;
use serde_json::{Value, json};
use std::error::Error;
use std::path::Path;
use std::time::Duration;

const FIGURES: &str = "bench/results/agents.json";
/// The demo's model for long prompts and prompts with tools: `e2e/cluster/images.sh long-model`.
const LONG_MODEL: &str = "grpo.dev/demo/long-model:1";
/// Of one run. Prompts with tools are some thousand tokens long.
const LIMIT: Duration = Duration::from_secs(6 * 60 * 60);
const SEED: u64 = 0;
const ITERATIONS: u32 = 16;
/// Sampling seed of the recorded set.
const RECORDED_SEED: u64 = 19;
const RECORDED_SET: &str = "recorded";
/// The tools' texts are most of a conversation. One pack with all conversations of a step computes them once.
const PACK_TOKENS: u32 = 32_768;
/// Two whole lines with their quotes fit into an answer.
const ANSWER_TOKENS: u32 = 512;
const CONVERSATIONS: &str = "conversations.jsonl";
const TASKS: &str = "tasks.jsonl";

/// Counts that depend on the length of the agent's prompts.
struct Scale {
    /// Recorded samples of each task.
    recorded: u32,
    /// Passes of the warm-up over the recording.
    epochs: u32,
    /// Conversations in a step of the warm-up.
    batch: u32,
    /// Of GRPO.
    learning_rate: f64,
    turns: u32,
    sandboxes: u32,
    sandbox_memory: &'static str,
}

impl Scale {
    fn of(agent: Agent) -> Self {
        let long = Self {
            recorded: 24,
            // After two passes over the tools with pdb a policy wrote valid calls, with paths of other tasks.
            epochs: 8,
            batch: 8,
            // At 2e-4, calls of the tools with pdb became malformed in four steps, and 20 % resolved fell to 3 %.
            learning_rate: 5e-5,
            turns: 8,
            sandboxes: 16,
            sandbox_memory: "128Mi",
        };
        match agent {
            Agent::EditTool => Self {
                recorded: 48,
                epochs: 4,
                batch: 16,
                learning_rate: 2e-4,
                ..long
            },
            // The loop has no submission: a script that gives up runs the tests until the limit.
            Agent::Pdb => Self { turns: 6, ..long },
            // Node.js in each sandbox.
            Agent::QwenCode => Self {
                sandboxes: 8,
                sandbox_memory: "512Mi",
                ..long
            },
        }
    }
}

/// One agent's measurement.
struct Measuring<'a> {
    client: &'a Client,
    options: &'a Options,
    agent: Agent,
    tasks: &'a Tasks,
    scale: Scale,
}

/// Runs those of the three runs whose stores do not exist yet. Returns whether every bar is met.
pub async fn measure(client: &Client, options: &Options, agent: Agent, tasks: &Tasks) -> Result<bool, Box<dyn Error>> {
    let measuring = Measuring {
        client,
        options,
        agent,
        tasks,
        scale: Scale::of(agent),
    };
    measuring.all().await
}

impl Measuring<'_> {
    async fn all(&self) -> Result<bool, Box<dyn Error>> {
        let grpo = self.grpo()?;
        if self.finished(&grpo).is_none() {
            self.prepare().await?;
            self.delete_if("grpo", has_failed).await?;
        }
        let folder = run_within(self.client, self.options, grpo, LIMIT).await?;
        for claim in [self.files_claim(), self.runs_claim()] {
            volume::delete(self.client, &self.options.namespace, &claim).await?;
        }
        let script = match self.finished(&self.script("")?) {
            Some(store) => Recording::of(&store)?.rate(),
            None => None,
        };
        let before = learning::first_evaluations(&folder)?;
        let outcome = learning::outcome(&folder, &self.name("grpo"), &before, self.tasks)?;
        let report = outcome
            .get(SET)
            .ok_or("the GRPO run has no evaluation of the training tasks")?;
        let rows = agents::rows(self.agent, script, report);
        let file = Path::new(FIGURES);
        Bench::of_this_machine(&rows).merged_with(file).write(file)?;
        print(&rows, file);
        Ok(rows.iter().all(|row| row.meets_its_bar()))
    }

    /// Records the script and trains on the recording.
    async fn prepare(&self) -> Result<(), Box<dyn Error>> {
        let (client, namespace) = (self.client, &self.options.namespace);
        let warm = self.warm();
        let claim = self.runs_claim();
        let is_new = !volume::exists(client, namespace, &claim).await?;
        volume::create(client, namespace, &self.files_claim(), "256Mi").await?;
        volume::create(client, namespace, &claim, "2Gi").await?;
        if is_new && self.finished(&warm).is_some() {
            // The cluster of the warm-up is gone, and the GRPO run reads its weights in the claim.
            let copied = self.options.out.join(warm.name());
            let folder = format!("{namespace}/{}", warm.name());
            println!("{}: {} is written into claim {claim}", warm.name(), copied.display());
            if let Err(error) = volume::write_folder(client, namespace, &claim, &copied, &folder).await {
                // The next start would take half a store for the warm-up's.
                volume::delete(client, namespace, &claim).await?;
                return Err(error.into());
            }
        }
        if self.agent.test_command().is_some() {
            let tasks = self.tasks_with_commands()?;
            volume::write(client, namespace, &self.files_claim(), &[(TASKS, tasks.as_bytes())]).await?;
        }
        let recording = self.recorded().await?;
        println!(
            "{}: {} of {} recorded episodes resolved, {} conversations",
            self.name("script"),
            recording.resolved,
            recording.episodes,
            recording.rows.len()
        );
        if recording.rows.is_empty() {
            return Err(format!("the store of {} holds no conversation", self.name("script")).into());
        }
        if self.finished(&warm).is_none() {
            let lines = recording.lines();
            let files = [(CONVERSATIONS, lines.as_bytes())];
            volume::write(client, namespace, &self.files_claim(), &files).await?;
        }
        self.delete_if("warm", has_failed).await?;
        run_within(client, self.options, warm, LIMIT).await?;
        Ok(())
    }

    /// The script's episodes, from its store or from a new run.
    async fn recorded(&self) -> Result<Recording, Box<dyn Error>> {
        if let Some(store) = self.finished(&self.script("")?) {
            return Ok(Recording::of(&store)?);
        }
        // A run that is still there asks a server that has ended.
        self.delete_if("script", |_| true).await?;
        let address = cluster::host_address();
        let server = server::start(&address, Teacher::of(self.agent, self.tasks)).await;
        let server = server.map_err(|error| format!("serving the script at {address}: {error}; is the cluster up?"))?;
        let store = run_within(self.client, self.options, self.script(&server.url)?, LIMIT).await?;
        Ok(Recording::of(&store)?)
    }

    /// Deletes the run of an earlier start if this holds for it.
    async fn delete_if(&self, part: &str, holds: impl Fn(&GrpoRun) -> bool) -> Result<(), Box<dyn Error>> {
        let name = self.name(part);
        let runs: Api<GrpoRun> = Api::namespaced(self.client.clone(), &self.options.namespace);
        let earlier = runs.get_opt(&name).await;
        let earlier = earlier.map_err(cluster::api("reading", format!("GrpoRun {name}")))?;
        if let Some(earlier) = earlier.filter(|run| holds(run)) {
            delete_run(self.client, &earlier, DELETE_LIMIT).await?;
        }
        Ok(())
    }

    fn finished(&self, manifest: &RunManifest) -> Option<RunFolder> {
        finished(&self.options.out.join(manifest.name()))
    }

    fn name(&self, part: &str) -> String {
        format!("agent-{}-{part}", self.agent.slug())
    }

    /// The claim of tasks and conversations.
    fn files_claim(&self) -> String {
        self.name("files")
    }

    /// The claim of the stores of warm-up and GRPO run.
    fn runs_claim(&self) -> String {
        self.name("runs")
    }

    /// GRPO with the warm-up's weights, on the tasks that are measured.
    fn grpo(&self) -> Result<RunManifest, Box<dyn Error>> {
        let mut run = base(self.options)?;
        if let Some(sets) = run.0["spec"]["tasks"]["evaluate"].as_array_mut() {
            sets.retain(|set| set["name"] == SET);
        }
        let dataset = self.dataset(&run);
        let run = run.for_each_set(|set| {
            set["dataset"] = dataset.clone();
            set["atStart"] = json!(true);
        });
        let warm = format!("{}/{}", self.options.namespace, self.name("warm"));
        let memory = "/sandboxes/pool/resources/limits/memory";
        Ok(run
            .named(&self.name("grpo"))
            .with("/seed", json!(SEED))
            .with("/model/image/reference", json!(LONG_MODEL))
            .with("/tasks/train/dataset", dataset)
            .with("/tasks/train/select", json!({"limit": self.options.limit}))
            .with("/agent", self.agent_spec())
            .with(
                "/rollout/iterations",
                json!(self.options.iterations.unwrap_or(ITERATIONS)),
            )
            .with("/rollout/sampling/maxTokensPerCall", json!(ANSWER_TOKENS))
            .with("/algorithm/learningRate", json!(self.scale.learning_rate))
            .with("/trainer", trainer())
            .with("/sandboxes/pool/max", json!(self.scale.sandboxes))
            .with(memory, json!(self.scale.sandbox_memory))
            .with("/resumeFrom", json!({"path": warm, "optimizer": false}))
            .with(
                "/store",
                json!({"persistentVolumeClaim": {"claimName": self.runs_claim()}}),
            ))
    }

    /// The same agent and tasks, played by the script at this address.
    fn script(&self, url: &str) -> Result<RunManifest, Box<dyn Error>> {
        let grpo = self.grpo()?;
        let set = json!({
            "name": RECORDED_SET,
            "dataset": self.dataset(&grpo),
            "select": {"limit": self.options.limit},
            "samples": self.options.recorded.unwrap_or(self.scale.recorded),
            "seed": RECORDED_SEED,
        });
        let engine = json!({"external": {"url": url, "model": MODEL, "api": "Chat", "weights": "Frozen"}});
        let sampling = json!({"temperature": 1.0, "maxTokensPerCall": ANSWER_TOKENS});
        let mut run = grpo
            .named(&self.name("script"))
            .with("/mode", json!("Evaluate"))
            .with("/tasks", json!({"evaluate": [set]}))
            .with("/rollout", json!({"sampling": sampling}))
            .with("/inference", json!({"pool": {"engine": engine, "replicas": 1}}))
            .with(
                "/store",
                json!({"volumeClaimTemplate": {"resources": {"requests": {"storage": "2Gi"}}}}),
            );
        if let Some(spec) = run.0["spec"].as_object_mut() {
            for field in ["algorithm", "trainer", "checkpoint", "resumeFrom"] {
                spec.remove(field);
            }
        }
        Ok(run)
    }

    /// Supervised training on all conversations: those that were not resolved keep the script's choices diverse.
    fn warm(&self) -> RunManifest {
        let files = json!({"claimName": self.files_claim(), "path": CONVERSATIONS});
        RunManifest(json!({
            "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun", "metadata": {"name": self.name("warm")},
            "spec": {
                "mode": "Finetune",
                "seed": SEED,
                "model": {"image": {"reference": LONG_MODEL}},
                "finetune": {
                    "dataset": {"persistentVolumeClaim": files},
                    "resolvedOnly": false,
                    "epochs": self.scale.epochs,
                    "batch": self.scale.batch,
                    "overlong": "LeaveOut",
                },
                "algorithm": {"learningRate": 1e-3, "schedule": {"decay": "Cosine", "warmupRatio": 0.05}},
                "trainer": trainer(),
                "checkpoint": {"every": 200, "keep": 1},
                "store": {"persistentVolumeClaim": {"claimName": self.runs_claim()}},
            },
        }))
    }

    fn agent_spec(&self) -> Value {
        let mut spec = self.agent.spec();
        spec["limits"] = json!({"turns": self.scale.turns, "commandTimeout": "20s", "episodeTimeout": "10m"});
        spec
    }

    /// The demo's rows, or those with a command if the agent needs one.
    fn dataset(&self, run: &RunManifest) -> Value {
        match self.agent.test_command() {
            Some(_) => json!({"persistentVolumeClaim": {"claimName": self.files_claim(), "path": TASKS}}),
            None => run.0["spec"]["tasks"]["train"]["dataset"].clone(),
        }
    }

    /// The training rows in their order, each with the command that the agent's tool runs.
    fn tasks_with_commands(&self) -> Result<String, Box<dyn Error>> {
        let path = self.options.tasks.join("train.jsonl");
        let text = std::fs::read_to_string(&path).map_err(|error| format!("reading {}: {error}", path.display()))?;
        let rows = text.lines().filter(|line| !line.trim().is_empty()).map(|line| {
            let mut row: Value = serde_json::from_str(line)?;
            row["test_command"] = json!(self.agent.test_command());
            Ok::<_, serde_json::Error>(format!("{row}\n"))
        });
        rows.collect::<Result<String, _>>()
            .map_err(|error| format!("{} has a line that is not JSON: {error}", path.display()).into())
    }
}

fn trainer() -> Value {
    json!({"nodes": 1, "maxTokensPerGpu": PACK_TOKENS})
}

/// A failed run stays failed when it is applied again. Its store is in the claim, so a new run of its name continues.
fn has_failed(run: &GrpoRun) -> bool {
    phase_of(run) == Phase::Failed
}
