//! `grpo-trainer serve`: one rank of a run's trainer. `grpo-trainer finetune`: a warm start from demonstrations.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use grpo_auth::AuthFlags;
use grpo_contracts::RunConfig;
use grpo_contracts::listen::everywhere;
use grpo_model::weights::{self, Source};
use grpo_model::{Config, adapter, lora};
use grpo_native::{Group, Rendezvous};
use grpo_records::RunStore;
use grpo_records::store::wait;
use grpo_trainer::TrainError;
use grpo_trainer::error::TERMINATED_CODE;
use grpo_trainer::export::{self, Form, Options};
use grpo_trainer::finetune::{self, FinetuneSettings};
use grpo_trainer::initial::initial_weights;
use grpo_trainer::launch::{self, Ranks};
use grpo_trainer::locked_memory;
use grpo_trainer::panics;
use grpo_trainer::serve::Process;
use grpo_trainer::sharded::Sharded;
use grpo_trainer::state::TrainerStore;
use grpo_trainer::watchdog::Limits;

#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train as a GrpoRun's driver orders. Ranks come from torchrun's environment.
    Serve {
        #[arg(long, default_value = RunConfig::PATH)]
        config: PathBuf,
        #[arg(long, default_value_t = everywhere(RunConfig::TRAINER_PORT))]
        listen: SocketAddr,
        /// Where the last word goes when a rank hangs.
        #[arg(long, default_value = "/dev/termination-log")]
        termination_log: PathBuf,
        #[command(flatten)]
        auth: AuthFlags,
        /// Number of the process that started this one as one of a pod's ranks. Without it, and where LOCAL_WORLD_SIZE
        /// is above 1, this process starts them.
        #[arg(long, hide = true)]
        launcher: Option<u32>,
    },
    /// Train a model from random weights on JSON lines {tokens, weights}.
    Finetune {
        /// Directory with config.json and the tokenizer; model.safetensors is written there.
        #[arg(long)]
        model: PathBuf,
        #[arg(long)]
        data: PathBuf,
        /// Tokens to see.
        #[arg(long, default_value_t = 8_000_000)]
        tokens: u64,
        #[arg(long, default_value_t = 3e-3)]
        rate: f64,
        #[arg(long, default_value_t = 0)]
        seed: u64,
    },
    /// Write a run's newest checkpoint, or a model as it is, as a Hugging Face directory; or merge an adapter into its
    /// model.
    Export {
        /// Directory of the model that the run began with.
        #[arg(long)]
        model: PathBuf,
        /// The run's store; without it the model itself is written.
        #[arg(long)]
        store: Option<PathBuf>,
        /// A PEFT adapter to merge into the model.
        #[arg(long, conflicts_with = "store")]
        adapter: Option<PathBuf>,
        /// Of a run that trains an adapter: write it alone, as PEFT has it, instead of merged into the model.
        #[arg(long, requires = "store")]
        adapter_alone: bool,
        /// Directory to write; it must not exist.
        #[arg(long)]
        to: PathBuf,
        #[arg(long, value_enum, default_value_t = Precision::F32)]
        precision: Precision,
        /// Bytes of one safetensors file.
        #[arg(long, default_value_t = export::FILE_BYTES)]
        file_bytes: u64,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Precision {
    F32,
    Bf16,
}

fn main() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    if let Err(error) = begin(Arguments::parse().command) {
        match error {
            TrainError::Terminated => tracing::info!("ended as told"),
            _ => tracing::error!(error = %error.in_words(), "the trainer ends"),
        }
        // Other threads may be inside of libtorch, whose destructors would wait for them.
        grpo_native::end_now(error.exit_code().into())
    }
}

/// Starts the pod's ranks if the pod has several and this process is not a rank; otherwise runs the command.
fn begin(command: Command) -> Result<(), TrainError> {
    if let Command::Serve { launcher, .. } = &command {
        locked_memory::check()?;
        let count = number("LOCAL_WORLD_SIZE", Some(1))?;
        match launcher {
            Some(launcher) => launch::end_with(*launcher)?,
            None if count > 1 => return start_ranks(count),
            None => {}
        }
    }
    on_termination(|| {
        tracing::info!("told to end");
        // Safe at any point: an unfinished file has no name yet, and the next attempt replays up to the last published
        // step.
        grpo_native::end_now(TERMINATED_CODE.into())
    })?;
    tch::set_num_threads(threads()?);
    run(command)
}

fn start_ranks(count: u32) -> Result<(), TrainError> {
    let first = number("RANK", Some(0))?;
    let program = std::env::current_exe()
        .map_err(|error| TrainError::Start(format!("finding the trainer's own executable: {error}")))?;
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    arguments.extend(["--launcher".into(), std::process::id().to_string().into()]);
    launch::launch(Ranks { first, count }, &program, &arguments, on_termination)
}

fn run(command: Command) -> Result<(), TrainError> {
    match command {
        Command::Serve {
            config,
            listen,
            termination_log,
            auth,
            launcher: _,
        } => {
            let bytes = std::fs::read(&config).map_err(TrainError::disk("reading", &config))?;
            let config: RunConfig = serde_json::from_slice(&bytes)
                .map_err(|e| TrainError::Start(format!("{} is not a run's config: {e}", config.display())))?;
            let unsupported = grpo_contracts::support::unsupported(&config.spec);
            if !unsupported.is_empty() {
                return Err(TrainError::Start(grpo_contracts::support::in_words(&unsupported)));
            }
            let process = process(&config, listen, termination_log, auth)?;
            panics::end_at_panic();
            grpo_trainer::serve::serve(config, &process)
        }
        Command::Finetune {
            model,
            data,
            tokens,
            rate,
            seed,
        } => warm_start(
            model,
            data,
            FinetuneSettings {
                tokens,
                peak_rate: rate,
                seed,
                ..FinetuneSettings::default()
            },
        ),
        Command::Export {
            model,
            store,
            adapter,
            adapter_alone,
            to,
            precision,
            file_bytes,
        } => {
            let options = Options {
                form: match adapter_alone {
                    true => Form::Adapter,
                    false => Form::Model,
                },
                precision: match precision {
                    Precision::F32 => weights::Precision::F32,
                    Precision::Bf16 => weights::Precision::Bf16,
                },
                file_bytes,
            };
            export_model(&model, store, adapter, &to, &options)
        }
    }
}

fn export_model(
    model_dir: &Path,
    store: Option<PathBuf>,
    adapter: Option<PathBuf>,
    to: &Path,
    options: &Options,
) -> Result<(), TrainError> {
    let config = Config::read(model_dir)?;
    let source = Source::open(model_dir, &config)?;
    let mut model = Sharded::read(config, Group::join(&Rendezvous::alone())?, &source)?;
    if let Some(root) = store {
        let store = TrainerStore::existing(&root)?;
        let none = || TrainError::Start(format!("{} holds no whole checkpoint", root.display()));
        let checkpoint = store.newest_checkpoint()?.ok_or_else(none)?;
        if let Some(adapter) = &checkpoint.adapter {
            let path = format!("step {} of {}", checkpoint.step, root.display());
            model = model.with_adapter(lora::Lora::from_peft(adapter.clone(), &path)?, 0)?;
        }
        store.load(&mut model, &checkpoint)?;
        eprintln!("step {} of lineage {}", checkpoint.step, checkpoint.lineage);
    }
    if let Some(adapter) = adapter {
        let (lora, matrices) = adapter::read(&adapter, &model.config)?;
        model = model.with_adapter_of(lora, &matrices)?;
    }
    model.export(to, model_dir, options)?;
    eprintln!("{}", to.display());
    Ok(())
}

fn warm_start(model_dir: PathBuf, data: PathBuf, settings: FinetuneSettings) -> Result<(), TrainError> {
    let config = Config::read(&model_dir)?;
    let rows = finetune::read(&data, config.vocab_size, config.max_position_embeddings)?;
    let group = Group::join(&if std::env::var_os("WORLD_SIZE").is_some() {
        rendezvous()?
    } else {
        Rendezvous::alone()
    })?;
    let first = group.rank() == 0;
    let mut model = Sharded::new(config.clone(), group, &initial_weights(&config, settings.seed))?;
    let report = finetune::train(&mut model, &rows, &settings, |step, seen, loss, seconds| {
        if first && step % 50 == 0 {
            let speed = seen as f64 / seconds;
            let left = settings.tokens.saturating_sub(seen) as f64 / speed;
            eprintln!(
                "step {step:>5}  {:>5.1} %  loss {loss:.4}  {speed:>6.0} tokens/s  {left:>4.0} s left",
                100.0 * seen as f64 / settings.tokens as f64
            );
        }
    })?;
    let weights = model.weights()?;
    if first {
        let bytes = weights::to_safetensors(&weights)?;
        let target = model_dir.join("model.safetensors");
        wait(RunStore::existing(&model_dir)?.replace("model.safetensors", bytes.into()))?;
        eprintln!(
            "{}: {} tokens in {} steps, {:.0} s, loss {:.4} -> {:.4}",
            target.display(),
            report.tokens,
            report.steps,
            report.seconds,
            report.first_loss,
            report.last_loss
        );
    }
    Ok(())
}

/// `GRPO_THREADS`, or this rank's share of the node's cores (of the container's, if it has a limit).
fn threads() -> Result<i32, TrainError> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let share = (cores / number("LOCAL_WORLD_SIZE", Some(1))?.max(1)).max(1);
    Ok(number("GRPO_THREADS", Some(share))?.max(1) as i32)
}

/// Calls `act` at SIGTERM, which a container's first process would otherwise not hear.
fn on_termination(act: impl FnOnce() + Send + 'static) -> Result<(), TrainError> {
    let failed = |e: std::io::Error| TrainError::Start(format!("listening for SIGTERM: {e}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let inside = runtime.enter();
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).map_err(failed)?;
    drop(inside);
    std::thread::spawn(move || {
        runtime.block_on(terminated.recv());
        act();
    });
    Ok(())
}

/// Longest wait of ranks for each other if a watchdog, or the operator, ends waits that are too long.
const UNTIL_TERMINATED: Duration = Duration::from_secs(24 * 3600);

fn process(
    config: &RunConfig,
    listen: SocketAddr,
    termination_log: PathBuf,
    auth: AuthFlags,
) -> Result<Process, TrainError> {
    let deadlines = config.spec.trainer.as_ref().map(|trainer| trainer.deadlines.clone());
    let deadlines = deadlines.unwrap_or_default();
    let local_rank = number("LOCAL_RANK", Some(0))?;
    Ok(Process {
        rendezvous: Rendezvous {
            timeout: UNTIL_TERMINATED,
            ..rendezvous()?
        },
        attempt: number("GRPO_ATTEMPT", Some(1))?,
        local_rank,
        listen: (local_rank == 0).then_some(listen),
        auth,
        limits: Limits {
            collective: deadlines.collective(),
            step: deadlines.step(),
            per_pod: number("LOCAL_WORLD_SIZE", Some(1))?,
            termination_log,
        },
    })
}

/// The rendezvous from torchrun's environment.
fn rendezvous() -> Result<Rendezvous, TrainError> {
    let text = |name: &str| std::env::var(name).unwrap_or_default();
    Ok(Rendezvous {
        rank: number("RANK", Some(0))?,
        world: number("WORLD_SIZE", Some(1))?,
        address: text("MASTER_ADDR"),
        port: number("MASTER_PORT", Some(29500))? as u16,
        own_host: text("POD_IP"),
        interface: text("GLOO_SOCKET_IFNAME"),
        timeout: Duration::from_secs(number("GRPO_COLLECTIVE_TIMEOUT", Some(120))?.into()),
    })
}

fn number(name: &'static str, default: Option<u32>) -> Result<u32, TrainError> {
    match (std::env::var(name), default) {
        (Ok(text), _) => text.parse().map_err(|_| TrainError::Environment { name, found: text }),
        (Err(_), Some(default)) => Ok(default),
        (Err(_), None) => Err(TrainError::Environment {
            name,
            found: "not set".to_owned(),
        }),
    }
}
