//! Writes the store of a run of any length: journal, metrics, episodes with their rows. Equal shapes give equal stores.
//!
//! A token of such a store is a byte, and its tokenizer says so. The first episode may hold what a hostile sandbox
//! could write: markup, a line without an end, bytes that are no text, a log of 64 MiB.

use super::ViewerBenchError;
use grpo_records::episode::TestCounts;
use grpo_records::store::sha256_hex;
use grpo_records::token_stats::{self, CLIPPED, COMPUTED, Columns, LEFT_OUT, RowSpan};
use grpo_records::{
    EpisodeEnd, EpisodeKey, EpisodeMeta, EpisodeRecord, EpisodeScope, Event, ExecSummary, GradeRecord, IterationRecord,
    JournalEntry, Message, Outcome, RowsFile, RunAgent, SCHEMA, StepMetrics, TokenRow, TurnAction, TurnRecord,
    VoidReason, WeightsSpan, Writer, paths, rows,
};
use serde::Serialize;
use std::path::Path;

const RUN: &str = "8f14e45f-ceea-467f-9d2b-0123456789ab";
/// The time of the first entry.
const BEGAN: i64 = 1_790_000_000;
const HOSTILE: &str =
    "<script>window.hostile = 1</script><img src=x onerror=\"window.hostile = 1\">\u{202e}txet\u{0}\u{1b}[31m\u{7}";

/// The size of a store.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub iterations: u32,
    pub groups: u32,
    pub samples: u32,
    pub turns: u32,
    /// The first episode has hostile content.
    pub hostile: bool,
}

/// Numbers that look random and are always the same.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn words(&mut self, count: usize) -> String {
        const WORDS: [&str; 24] = [
            "parser", "index", "returns", "empty", "cache", "when", "the", "caller", "drops", "handle", "wrong",
            "offset", "retry", "header", "before", "module", "loop", "twice", "field", "missing", "should", "raise",
            "error", "first",
        ];
        let words: Vec<String> = (0..count)
            .map(|_| match self.roll(8) {
                0 => format!("name_{}", self.roll(20_000)),
                _ => WORDS[self.roll(WORDS.len() as u64) as usize].to_owned(),
            })
            .collect();
        words.join(" ")
    }
}

struct Writing<'a> {
    dir: &'a Path,
    shape: Shape,
    dice: Dice,
    sequence: u64,
    at: i64,
}

/// Writes a store to an empty folder. Returns the number of its episodes.
pub fn write(dir: &Path, shape: Shape) -> Result<u64, ViewerBenchError> {
    let mut writing = Writing {
        dir,
        shape,
        dice: Dice(0x9e37_79b9_7f4a_7c15),
        sequence: 0,
        at: BEGAN,
    };
    writing.run()
}

impl Writing<'_> {
    fn run(&mut self) -> Result<u64, ViewerBenchError> {
        let vocabulary: serde_json::Map<String, serde_json::Value> = (0..=u8::MAX)
            .map(|byte| (alphabet(byte).to_string(), u32::from(byte).into()))
            .collect();
        let tokenizer = serde_json::json!({
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
            "decoder": {"type": "ByteLevel"},
        });
        self.put(&paths::weights_file("l1-v0", "tokenizer.json"), &tokenizer)?;
        self.tell(Event::RunStarted {
            run: RUN.to_owned(),
            namespace: "team".to_owned(),
            name: "long-run".to_owned(),
            seed: 0,
            tasks_sha256: "0".repeat(64),
            tasks: self.shape.groups * 8,
            agent: RunAgent::Bash,
            rows_per_turn: false,
            process: None,
            reward: None,
            sets_sha256: None,
            inputs_sha256: None,
        })?;
        self.tell(Event::DriverStarted { epoch: 1 })?;
        self.tell(promoted(0))?;
        let mut episodes = self.evaluation(0)?;
        for iteration in 1..=self.shape.iterations {
            episodes += self.iteration(iteration)?;
            if iteration % 50 == 0 || iteration == self.shape.iterations {
                episodes += self.evaluation(iteration)?;
            }
        }
        self.tell(Event::RunFinished {
            succeeded: true,
            reason: None,
            message: None,
        })?;
        Ok(episodes)
    }

    fn iteration(&mut self, iteration: u32) -> Result<u64, ViewerBenchError> {
        let (groups, weights) = (self.shape.groups, paths::weights_version("l1", iteration - 1));
        self.tell(Event::IterationStarted {
            iteration,
            weights: weights.clone(),
            tasks: (0..groups)
                .map(|group| (iteration * groups + group) % (groups * 8))
                .collect(),
            dynamic: None,
        })?;
        let scope = EpisodeScope::Iteration { iteration };
        let mut metas = Vec::new();
        let mut advantages = Vec::new();
        // The policy learns.
        let rate = 20 + 60 * u64::from(iteration) / u64::from(self.shape.iterations.max(1));
        for group in 0..groups {
            let task = (iteration * groups + group) % (groups * 8);
            let of_group = (0..self.shape.samples)
                .map(|sample| self.episode(&scope, &weights, task, group, sample, rate))
                .collect::<Result<Vec<_>, _>>()?;
            let rewards: Vec<f64> = of_group.iter().filter_map(|meta| meta.reward).map(f64::from).collect();
            let mean = rewards.iter().sum::<f64>() / rewards.len().max(1) as f64;
            advantages.push(rewards.iter().map(|reward| reward - mean).collect());
            metas.extend(of_group);
        }
        self.tell(Event::BatchWritten {
            iteration,
            step: iteration,
            sha256: "0".repeat(64),
            rows: metas.len() as u32,
        })?;
        let record = IterationRecord::of(Writer::driver(1), iteration, weights, &metas);
        self.put(&paths::driver_metrics(iteration), &record)?;
        let noise = self.dice.roll(100) as f64 / 1000.0;
        let metrics = StepMetrics {
            step: iteration,
            weights: paths::weights_version("l1", iteration),
            loss: 0.05 - f64::from(iteration) * 1e-5 + noise,
            entropy: 1.2 / (1.0 + f64::from(iteration) / 300.0) + noise,
            kl: f64::from(iteration) * 1e-5,
            gradient_norm: 0.4 + noise,
            learning_rate: 1e-6,
            logprob_gap_max: 1e-5 * (1.0 + noise),
            advantages,
            seconds: 40.0 + 100.0 * noise,
            ..StepMetrics::default()
        };
        self.put_bytes(&paths::token_stats(iteration), &self.token_stats(&metas)?)?;
        self.put(&paths::trainer_metrics(iteration), &metrics)?;
        self.tell(Event::StepDone {
            step: iteration,
            weights: paths::weights_version("l1", iteration),
            manifest_sha256: "0".repeat(64),
        })?;
        self.tell(promoted(iteration))?;
        Ok(metas.len() as u64)
    }

    /// Statistics of the sampled tokens of these episodes.
    fn token_stats(&self, metas: &[EpisodeMeta]) -> Result<Vec<u8>, ViewerBenchError> {
        let mut dice = Dice(self.dice.0);
        let (mut rows, mut columns) = (Vec::new(), Columns::default());
        for meta in metas {
            let from = columns.marks.len();
            for _ in 0..meta.sampled_tokens {
                columns.logprobs.push(-(dice.roll(1000) as f32) / 400.0);
                columns.entropies.push(dice.roll(1000) as f32 / 400.0);
                columns.ratios.push(0.5 + dice.roll(1000) as f32 / 1000.0);
                columns.marks.push(match dice.roll(40) {
                    0 => COMPUTED | CLIPPED,
                    1 => COMPUTED | LEFT_OUT,
                    _ => COMPUTED,
                });
            }
            rows.push(RowSpan {
                episode: meta.key.dir(meta.attempt),
                advantage: Some(0.5),
                from,
                to: columns.marks.len(),
                ..RowSpan::default()
            });
        }
        Ok(token_stats::encode(rows, &columns)?)
    }

    fn evaluation(&mut self, step: u32) -> Result<u64, ViewerBenchError> {
        let weights = paths::weights_version("l1", step);
        let scope = EpisodeScope::Evaluation {
            set: "heldout".to_owned(),
            weights: weights.clone(),
        };
        let rate = 20 + 50 * u64::from(step) / u64::from(self.shape.iterations.max(1));
        let metas = (0..self.shape.groups)
            .map(|task| self.episode(&scope, &weights, task, task, 0, rate))
            .collect::<Result<Vec<_>, _>>()?;
        let resolved = metas.iter().filter(|meta| meta.outcome == Outcome::Resolved).count() as u32;
        self.tell(Event::EvaluationDone {
            set: "heldout".to_owned(),
            weights,
            resolved,
            episodes: metas.len() as u32,
            voids: 0,
        })?;
        Ok(metas.len() as u64)
    }

    /// An episode that is resolved in `rate` of 100 cases. Now and then an earlier attempt became void.
    fn episode(
        &mut self,
        scope: &EpisodeScope,
        weights: &str,
        task: u32,
        group: u32,
        sample: u32,
        rate: u64,
    ) -> Result<EpisodeMeta, ViewerBenchError> {
        let key = EpisodeKey {
            scope: scope.clone(),
            instance: format!("project__module-{task:04}"),
            group,
            sample,
        };
        let hostile =
            self.shape.hostile && *scope == EpisodeScope::Iteration { iteration: 1 } && (group, sample) == (0, 0);
        if self.dice.roll(200) == 0 {
            self.tell(Event::EpisodeVoided {
                episode: key.dir(1),
                reason: VoidReason::SandboxLost,
                turns: 1,
                tokens: 300,
                message: "its node was drained".to_owned(),
            })?;
        }
        let resolved = self.dice.roll(100) < rate;
        let turns = self.turns(&key, weights, hostile);
        let row = row_of(&turns, weights);
        let file = rows::encode(std::slice::from_ref(&row))?;
        let path = key.dir(1);
        let patch = match (hostile, self.dice.roll(3)) {
            (true, _) => format!("--- a/tests/test_x.py\n+++ b/tests/test_x.py\n@@ -1 +1 @@\n-{HOSTILE}\n+{HOSTILE}\n"),
            (_, 0) => String::new(),
            (_, same) => format!(
                "--- a/module.py\n+++ b/module.py\n@@ -{same} +{same} @@\n-    return None\n+    return index\n"
            ),
        };
        let meta = EpisodeMeta {
            schema: SCHEMA,
            writer: Writer::driver(1),
            run: RUN.to_owned(),
            attempt: 1,
            outcome: if resolved {
                Outcome::Resolved
            } else {
                Outcome::Unresolved
            },
            reward: Some(f32::from(u8::from(resolved))),
            process: None,
            end: EpisodeEnd::Submitted,
            turns: turns.len() as u32,
            tokens: row.tokens.len(),
            sampled_tokens: row.sampled(),
            format_errors: 0,
            truncated: false,
            weights: vec![weights.to_owned()],
            untrainable: false,
            patch_bytes: patch.len(),
            patch_sha256: Some(sha256_hex(patch.as_bytes())),
            graded: None,
            grade: Some(GradeRecord {
                status: "Judged".to_owned(),
                fail_to_pass: TestCounts {
                    passed: u32::from(resolved),
                    failed: u32::from(!resolved),
                },
                tries: 1,
                ..GradeRecord::default()
            }),
            message: hostile.then(|| HOSTILE.to_owned()),
            agent_millis: 3000 + self.dice.roll(20_000),
            grade_millis: 2000 + self.dice.roll(3000),
            waited_millis: self.dice.roll(1500),
            at: self.at,
            key: key.clone(),
        };
        let record = EpisodeRecord {
            schema: SCHEMA,
            writer: Writer::driver(1),
            run: RUN.to_owned(),
            key,
            attempt: 1,
            task,
            image: "registry.example/project:1".to_owned(),
            end: EpisodeEnd::Submitted,
            aborted: None,
            patch_too_large: false,
            turns: turns.iter().map(TurnRecord::without_ids).collect(),
            process: None,
            rows: Some(RowsFile {
                sha256: sha256_hex(&file),
                rows: 1,
                tokens: row.tokens.len(),
            }),
            temperature: 1.0,
            top_p: 1.0,
            top_k: -1,
            truncated: false,
            started_at: self.at,
            finished_at: self.at,
        };
        self.put_bytes(&paths::rows(&path), &file)?;
        self.put(&paths::trajectory(&path), &record)?;
        self.put_bytes(&paths::patch(&path), patch.as_bytes())?;
        if hostile {
            let mut log = b"\xff\xfe not text ".to_vec();
            log.resize(64 << 20, b'x');
            self.put_bytes(&paths::grade_log(&path), &log)?;
        }
        self.put(&paths::meta(&path), &meta)?;
        self.tell(Event::Verdict {
            episode: path,
            outcome: meta.outcome.clone(),
            reward: meta.reward.unwrap_or_default(),
        })?;
        Ok(meta)
    }

    fn turns(&mut self, key: &EpisodeKey, weights: &str, hostile: bool) -> Vec<TurnRecord> {
        let mut turns: Vec<TurnRecord> = Vec::new();
        let mut known = 0;
        for number in 0..self.shape.turns {
            let opening = match number {
                0 => format!("Fix the bug: {}", self.dice.words(30)),
                _ => String::new(),
            };
            let thought = self.dice.words(8);
            let command = match self.dice.roll(40) {
                0 => "git log --oneline -3".to_owned(),
                1 => "cat tests/test_module.py".to_owned(),
                _ => format!("grep -rn {} .", self.dice.words(1)),
            };
            let mut text = format!("{thought}\n```bash\n{command}\n```");
            let mut output = self.dice.words(20);
            if hostile {
                text = format!("{HOSTILE}\n{text}");
                output = match number {
                    0 => "a line without an end ".repeat(50_000),
                    _ => HOSTILE.to_owned(),
                };
            }
            let ids = |text: &str| -> Vec<u32> { text.bytes().map(u32::from).collect() };
            let prompt = ids(&opening);
            let (sampled, observation) = (ids(&text), ids(&output[..output.len().min(2000)]));
            let prompt_length = known + prompt.len();
            known = prompt_length + sampled.len() + observation.len();
            let logprobs = sampled.iter().map(|_| -(self.dice.roll(1000) as f32) / 400.0).collect();
            turns.push(TurnRecord {
                schema: SCHEMA,
                writer: Writer::driver(1),
                episode: key.name(),
                turn: number,
                lease: "lease".to_owned(),
                omitted: None,
                opening: (number == 0)
                    .then(|| Message {
                        role: "user".to_owned(),
                        content: opening,
                        tokens: prompt.len(),
                        note: None,
                    })
                    .into_iter()
                    .collect(),
                row: 0,
                prompt_length,
                sampled_length: sampled.len(),
                observation_length: observation.len(),
                prompt,
                seed: 0,
                sampled,
                logprobs,
                weights: weights.to_owned(),
                finish: "stop".to_owned(),
                experts: None,
                text,
                request: None,
                chat: None,
                action: TurnAction::command(command),
                exec: Some(ExecSummary {
                    exec: format!("e{number}"),
                    exit_code: Some(i32::from(self.dice.roll(5) == 0)),
                    signal: None,
                    timed_out: false,
                    killed: None,
                    output_bytes: output.len() as u64,
                    omitted_bytes: 0,
                    duration_millis: 20 + self.dice.roll(400),
                }),
                observation,
                observation_text: output,
                memory: serde_json::Value::Null,
                end: (number + 1 == self.shape.turns).then_some(EpisodeEnd::Submitted),
                sample_millis: 500 + self.dice.roll(4000),
                exec_millis: 20 + self.dice.roll(400),
                waited_millis: self.dice.roll(100),
                at: self.at,
            });
        }
        turns
    }

    fn tell(&mut self, event: Event) -> Result<(), ViewerBenchError> {
        self.sequence += 1;
        self.at += 1;
        let entry = JournalEntry {
            schema: SCHEMA,
            writer: Writer::driver(1),
            sequence: self.sequence,
            at: self.at,
            event,
        };
        self.put(&paths::journal_entry(self.sequence), &entry)
    }

    fn put(&self, path: &str, record: &impl Serialize) -> Result<(), ViewerBenchError> {
        self.put_bytes(path, &serde_json::to_vec(record)?)
    }

    fn put_bytes(&self, path: &str, bytes: &[u8]) -> Result<(), ViewerBenchError> {
        let file = self.dir.join(path);
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder).map_err(ViewerBenchError::io("making", folder))?;
        }
        std::fs::write(&file, bytes).map_err(ViewerBenchError::io("writing", &file))
    }
}

fn promoted(step: u32) -> Event {
    Event::Promoted {
        weights: paths::weights_version("l1", step),
        manifest_sha256: "0".repeat(64),
        step,
    }
}

fn row_of(turns: &[TurnRecord], weights: &str) -> TokenRow {
    let mut row = TokenRow::default();
    for turn in turns {
        let mut add = |ids: &[u32], mask: u8| {
            row.tokens.extend(ids);
            row.mask.resize(row.tokens.len(), mask);
            row.logprobs.resize(row.tokens.len(), 0.0);
        };
        add(&turn.prompt, 0);
        add(&turn.sampled, 1);
        add(&turn.observation, 0);
        let from = turn.prompt_length;
        let to = from + turn.sampled.len();
        row.logprobs[from..to].copy_from_slice(&turn.logprobs);
        row.weights.push(WeightsSpan {
            from,
            to,
            version: weights.to_owned(),
        });
        row.turns.push(turn.turn);
    }
    row
}

/// GPT-2's character of a byte.
fn alphabet(byte: u8) -> char {
    let is_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let code = match is_itself(byte) {
        true => u32::from(byte),
        false => 0x100 + (0..byte).filter(|lower| !is_itself(*lower)).count() as u32,
    };
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}
