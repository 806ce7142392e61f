//! The trainers of each case, the number of their rounds, and the figures from their steps.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use grpo_bench_report::{Bench, Row};

use crate::Failure;
use crate::cases::{Case, prepare};
use crate::division;
use crate::median::median;
use crate::step::{Said, compare};

#[derive(Args)]
pub struct Flags {
    /// 1: one group. 2: turns, append-only and trimmed. 5: several ranks beside one. 6: memory, estimated and counted.
    /// 7: memory of waves. 9: what sharding costs.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    figures: Vec<u8>,
    /// Of every trainer.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How many rows TRL may take at once; the fastest is measured.
    #[arg(long, value_delimiter = ',', default_value = "1,2,8")]
    trl_rows: Vec<usize>,
    /// Measure TRL also with the forward pass by which it computes old logprobs when vLLM has sampled.
    #[arg(long)]
    old_pass: bool,
    /// Ours alone, on a model and rows that take no time.
    #[arg(long)]
    short: bool,
    /// Python with TRL in it; by default that of e2e/setup/trl.sh.
    #[arg(long)]
    python: Option<PathBuf>,
    #[arg(long, default_value = "e2e/peers/trainer_step.py")]
    script: PathBuf,
    /// Where models and rows are put.
    #[arg(long)]
    folder: Option<PathBuf>,
    #[arg(long, default_value = "bench/results/trainer.json")]
    out: PathBuf,
}

/// A trainer and how it is run.
#[derive(Clone, Debug, PartialEq)]
enum Trainer {
    Ours,
    /// Our trainer, every row alone.
    Unshared,
    Plain,
    /// `old_pass`: TRL computes the old logprobs itself, as it does with vLLM, instead of reading them.
    Trl {
        rows_at_once: usize,
        old_pass: bool,
    },
}

struct TrainerBench<'a> {
    flags: &'a Flags,
    python: PathBuf,
    folder: PathBuf,
}

/// Returns whether every bar is met. Figures that this call does not measure stay unchanged.
pub fn bench(flags: &Flags) -> Result<bool, Failure> {
    let cache = std::env::var_os("GRPO_CACHE").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::home_dir().map(|home| home.join(".cache/grpo-operator")));
    let cache = cache.unwrap_or_else(|| ".cache/grpo-operator".into());
    let bench = TrainerBench {
        flags,
        python: flags
            .python
            .clone()
            .unwrap_or_else(|| cache.join("venv-trl/bin/python")),
        folder: flags.folder.clone().unwrap_or_else(|| cache.join("bench-trainer")),
    };
    let mut met = true;
    for figure in &flags.figures {
        let rows = match figure {
            1 => bench.figure("1: a group of eight", Case::Group)?,
            2 => [
                bench.figure("2: turns, append-only", Case::Turns)?,
                bench.figure("2: turns, trimmed history", Case::Trimmed)?,
            ]
            .concat(),
            5 => division::equivalence(&bench.folder, flags.short)?,
            6 => division::memory(&bench.folder, flags.short)?,
            7 => division::waves(&bench.folder, flags.short)?,
            9 => division::cost(&bench.folder, flags.short, flags.rounds)?,
            other => return Err(format!("figure {other} is not measured here; 1, 2, 5, 6, 7 and 9 are").into()),
        };
        for row in &rows {
            met &= row.meets_its_bar();
            show(row);
        }
        let versions = if flags.short || *figure > 2 {
            vec![]
        } else {
            vec!["torch 2.11.0".to_owned(), "trl 1.16.0".to_owned()]
        };
        let measured = Bench::of_this_machine(&rows).with_versions(&versions);
        measured.merged_with(&flags.out).write(&flags.out)?;
    }
    Ok(met)
}

/// Prints a figure, and marks it if it misses its bar.
pub fn show(row: &Row) {
    println!(
        "{} {:<86} {:>10} {:<10} {:<10} {}",
        if row.meets_its_bar() { " " } else { "!" },
        row.figure,
        row.value.unwrap_or(f64::NAN),
        row.unit,
        row.bar.as_deref().unwrap_or_default(),
        row.peer.as_ref().map_or(String::new(), |peer| format!(
            "({peer}: {})",
            row.peer_value.unwrap_or(f64::NAN)
        )),
    );
}

impl TrainerBench<'_> {
    /// Runs one step in a process of its own.
    fn run(&self, trainer: &Trainer, folder: &Path, gradients: Option<&Path>) -> Result<Said, Failure> {
        let mut command = match trainer {
            Trainer::Ours | Trainer::Unshared => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("step").arg(folder);
                if *trainer == Trainer::Unshared {
                    command.arg("--unshared");
                }
                command
            }
            Trainer::Plain | Trainer::Trl { .. } => {
                let mut command = Command::new(&self.python);
                // TRL uses its own libtorch, not the one that we link against.
                command
                    .env_remove("LD_LIBRARY_PATH")
                    .env("CUDA_VISIBLE_DEVICES", "")
                    .env("HF_HUB_OFFLINE", "1");
                command.arg(&self.flags.script);
                match trainer {
                    Trainer::Trl { rows_at_once, old_pass } => command
                        .arg("trl")
                        .arg(folder)
                        .args(["--rows-at-once", &rows_at_once.to_string()])
                        .args(old_pass.then_some("--old-pass")),
                    _ => command.arg("plain").arg(folder),
                };
                command
            }
        };
        if let Some(path) = gradients {
            command.arg("--gradients").arg(path);
        }
        let ran = command.output().map_err(|error| format!("{command:?}: {error}"))?;
        if !ran.status.success() {
            let text = String::from_utf8_lossy(&ran.stderr);
            let end: Vec<&str> = text.lines().rev().take(5).collect();
            let end = end.into_iter().rev().collect::<Vec<_>>().join("\n");
            return Err(format!("{command:?}: {}\n{end}", ran.status).into());
        }
        let text = String::from_utf8(ran.stdout)?;
        let said: Said = serde_json::from_str(text.lines().last().unwrap_or_default())?;
        eprintln!(
            "{trainer:?}: {:.2} s, {} MiB, loss {}",
            said.seconds,
            said.peak_bytes >> 20,
            said.loss
        );
        Ok(said)
    }

    /// Measures all figures of one case.
    fn figure(&self, name: &str, case: Case) -> Result<Vec<Row>, Failure> {
        let folder = self.folder.join(name.replace([':', ',', ' '], "-"));
        prepare(&folder, case, self.flags.short)?;
        let mut others = Vec::new();
        let mut rows = Vec::new();
        let row = |what: &str, value: f64, unit: &str, bar: Option<&str>| {
            Row::significant(format!("{name}: {what}"), value, unit, bar)
        };
        // Loss and gradients must be equal before times are compared.
        let ours = folder.join("ours.safetensors");
        let reference = self.run(&Trainer::Ours, &folder, Some(&ours))?;
        let mut apart = [0.0f64; 2];
        let mut check = |other: &Trainer| -> Result<Said, Failure> {
            let theirs = folder.join("theirs.safetensors");
            let said = self.run(other, &folder, Some(&theirs))?;
            apart[0] = apart[0].max((said.loss - reference.loss).abs() / reference.loss.abs().max(1e-12));
            apart[1] = apart[1].max(compare(&ours, &theirs)?[0]);
            Ok(said)
        };
        if case != Case::Group || self.flags.short {
            check(&Trainer::Unshared)?;
            others.push(Trainer::Unshared);
        }
        if !self.flags.short {
            // One step of each setting selects the fastest, which is measured; all settings are compared with ours.
            let mut fastest: Option<(f64, usize)> = None;
            for rows_at_once in self.flags.trl_rows.iter().copied() {
                let trl = Trainer::Trl {
                    rows_at_once,
                    old_pass: false,
                };
                let said = check(&trl)?;
                let what = format!("one step of TRL's, {rows_at_once} rows at once");
                rows.push(row(&what, said.seconds, "s", None));
                if fastest.is_none_or(|(least, _)| said.seconds < least) {
                    fastest = Some((said.seconds, rows_at_once));
                }
            }
            if let Some((_, rows_at_once)) = fastest {
                let passes = [false, true];
                let measured = passes.into_iter().filter(|old_pass| !old_pass || self.flags.old_pass);
                others.extend(measured.map(|old_pass| Trainer::Trl { rows_at_once, old_pass }));
            }
            if case == Case::Group {
                check(&Trainer::Plain)?;
                others.push(Trainer::Plain);
            }
        }
        let against = if self.flags.short {
            "ours, every row alone"
        } else {
            "all of them"
        };
        rows.push(row("loss, relative distance", apart[0], "", Some("<= 1e-5")).beside(against, 0.0));
        rows.push(
            row(
                "gradients, largest relative distance of a tensor's",
                apart[1],
                "",
                Some("<= 1e-4"),
            )
            .beside(against, 0.0),
        );

        let mut said: Vec<Vec<Said>> = vec![Vec::new(); others.len() + 1];
        for _ in 0..self.flags.rounds {
            said[0].push(self.run(&Trainer::Ours, &folder, None)?);
            for (other, said) in others.iter().zip(said[1..].iter_mut()) {
                said.push(self.run(other, &folder, None)?);
            }
        }
        let seconds = |said: &[Said]| median(said.iter().map(|said| said.seconds).collect());
        let peak = |said: &[Said]| {
            median(
                said.iter()
                    .map(|said| said.peak_bytes as f64 / (1 << 20) as f64)
                    .collect(),
            )
        };
        let (row_tokens, unique) = (reference.row_tokens as f64, reference.unique_tokens as f64);
        let own = &said[0];
        rows.push(row("row tokens", row_tokens, "tokens", None));
        rows.push(row("unique tokens", unique, "tokens", None));
        rows.push(row("seconds of a step", seconds(own), "s", None));
        rows.push(row("row tokens a second", row_tokens / seconds(own), "tokens/s", None));
        rows.push(row("unique tokens a second", unique / seconds(own), "tokens/s", None));
        rows.push(row("peak memory", peak(own), "MiB", None));
        for (other, theirs) in others.iter().zip(&said[1..]) {
            let faster = seconds(theirs) / seconds(own);
            let there = row_tokens / seconds(theirs);
            match other {
                Trainer::Unshared => {
                    rows.push(
                        row("times as fast as every row alone", faster, "times", None)
                            .beside("ours, every row alone", there),
                    );
                    let bound = row_tokens / unique;
                    rows.push(row(
                        "row tokens over unique tokens, the bound of sharing",
                        bound,
                        "times",
                        None,
                    ));
                    let bar = (case == Case::Trimmed && !self.flags.short).then_some(">= 0.9");
                    rows.push(row("speed-up by sharing, over that bound", faster / bound, "", bar));
                }
                Trainer::Plain => {
                    let peer = "plain packed PyTorch";
                    rows.push(
                        row("times the plain packed step's speed", faster, "times", Some(">= 1")).beside(peer, there),
                    );
                    rows.push(
                        row(
                            "peak memory over the plain packed step's",
                            peak(own) / peak(theirs),
                            "",
                            None,
                        )
                        .beside(peer, peak(theirs)),
                    );
                }
                Trainer::Trl { rows_at_once, old_pass } => {
                    let (passes, bars) = match old_pass {
                        false => ("old logprobs given", true),
                        true => ("old logprobs computed, as with vLLM", false),
                    };
                    let peer = format!("TRL, {rows_at_once} rows at once, {passes}");
                    let bar = match case {
                        Case::Group => bars.then_some(">= 10"),
                        Case::Turns => bars.then_some(">= 15"),
                        Case::Trimmed => None,
                    };
                    let what = format!("times TRL's row tokens a second, its {passes}");
                    rows.push(row(&what, faster, "times", bar).beside(&peer, there));
                    let bar = (bars && case == Case::Group).then_some("<= 0.25");
                    let what = format!("peak memory over TRL's, its {passes}");
                    rows.push(row(&what, peak(own) / peak(theirs), "", bar).beside(&peer, peak(theirs)));
                }
                Trainer::Ours => (),
            }
        }
        Ok(rows)
    }
}
