//! `sandboxd`: PID 1 of every sandbox. Serves until its lease expires or it is told to reset. Then it kills every
//! process and exits with 0 or `RESET_EXIT`.

use std::{
    ffi::OsString,
    fmt::Display,
    io::{self, Write as _},
    net::SocketAddr,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use grpo_sandbox_protocol::{KEY_ENV, RESET_EXIT, Room, SANDBOXD_PORT, SignatureError, Verifier};
use sandboxd::{
    bounds::{self, ProcessGuard},
    callers::Callers,
    exec::{self, Executor},
    http::{self, Sandbox},
    lease::{Binding, End},
    leftovers::{Left, Surroundings},
    offload,
    reaper::Reaper,
    relay::Relays,
    session::{self, Sessions},
    watchdog::Watchdog,
};
use tokio::net::TcpListener;

/// Where to listen, if not on every address.
const LISTEN_ENV: &str = "GRPO_SANDBOXD_LISTEN";

/// Deadline to restore the state that outlives the container. After it the gateway takes another sandbox.
const PUT_BACK_WITHIN: Duration = Duration::from_secs(5);

/// Idle threads are kept, because a new thread might not be available later.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Does nothing as long as the pod exists, so that the node has the pod's image. Serves no calls and needs no key.
const HOLD: &str = "hold";

/// Serves callers from the same host too, as tests are. An argument, because an image could set a variable.
const ALLOW_LOCAL: &str = "--allow-local";

/// Why sandboxd cannot run.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the environment has no {KEY_ENV}; the gateway puts its public key there")]
    NoKey,
    #[error("{KEY_ENV}: {0}")]
    BadKey(SignatureError),
    #[error("{LISTEN_ENV} is {0:?}, which is no address with a port")]
    BadAddress(String),
    #[error("{doing}: {source}")]
    System { doing: &'static str, source: io::Error },
    #[error("this sandbox is not used again; there are left: {0}")]
    Left(#[from] Left),
}

impl Ended {
    fn while_doing<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System {
            doing,
            source: source.into(),
        }
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next();
    match first.as_deref().and_then(|first| first.to_str()) {
        Some(exec::PRINT_ENVIRONMENT) => return print_environment(arguments.next()),
        Some(session::TAKE_TERMINAL) => return take_terminal(arguments),
        Some(HOLD) => loop {
            std::thread::park();
        },
        _ => {}
    }
    match run() {
        Ok(code) => code,
        Err(ended) => {
            say(&ended);
            ExitCode::FAILURE
        }
    }
}

/// The last step of a shell that has set up an environment.
fn print_environment(mark: Option<OsString>) -> ExitCode {
    let mark = mark.and_then(|mark| mark.into_string().ok()).unwrap_or_default();
    match exec::print_environment(&mark) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The start of every session. As in a shell, 127 means that the program does not exist.
fn take_terminal(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let error = session::take(arguments);
    let _ = writeln!(io::stderr(), "sandboxd: {error}");
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound {
        127
    } else {
        126
    })
}

fn run() -> Result<ExitCode, Ended> {
    let key = std::env::var(KEY_ENV).map_err(|_| Ended::NoKey)?;
    let verifier = Verifier::from_base64(&key).map_err(Ended::BadKey)?;
    // Orphans become our children even if this is not PID 1.
    nix::sys::prctl::set_child_subreaper(true).map_err(Ended::while_doing("adopting orphans"))?;
    // The workload has the same user, and must not read or trace this process.
    nix::sys::prctl::set_dumpable(false).map_err(Ended::while_doing("hiding from the sandbox"))?;
    bounds::bound_processes();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(offload::THREADS)
        .thread_keep_alive(FOR_EVER)
        .build()
        .map_err(Ended::while_doing("starting"))?;
    runtime.block_on(serve(verifier))
}

async fn serve(verifier: Verifier) -> Result<ExitCode, Ended> {
    let surroundings = Surroundings::remember();
    // Before the workload can use up all threads.
    offload::start_threads().await;
    let (watchdog, guard) = (Watchdog::default(), ProcessGuard::default());
    guard
        .start()
        .map_err(Ended::while_doing("starting to count processes"))?;
    watchdog.start().map_err(Ended::while_doing("starting the watchdog"))?;
    let listener = listen().await?;
    let address = listener
        .local_addr()
        .map_err(Ended::while_doing("asking for the own address"))?;
    say(&format_args!("listens on {address}"));
    let (reaper, binding) = (Reaper::default(), Binding::default());
    let executor = Executor::new(reaper.clone(), guard).map_err(Ended::while_doing("opening /dev/null"))?;
    let sandbox = Arc::new(Sandbox {
        verifier,
        binding: binding.clone(),
        sessions: Sessions::new(executor.clone()),
        executor,
        relays: Relays::default(),
        room: Room::of_files(2),
    });
    let end = tokio::select! {
        ended = reaper.keep_reaping() => return ended.map(|()| ExitCode::SUCCESS).map_err(Ended::while_doing("waiting for SIGCHLD")),
        () = http::serve(listener, sandbox, callers()) => return Ok(ExitCode::SUCCESS),
        () = watchdog.beat() => return Ok(ExitCode::FAILURE),
        end = binding.ended() => end,
    };
    // Killed children must still be reaped; every process ends with this one in any case.
    let all_dead = tokio::select! {
        all_dead = exec::kill_everything() => all_dead,
        _ = reaper.keep_reaping() => false,
        () = watchdog.beat() => false,
    };
    match end {
        End::Expired => {
            say(&"the lease has run out");
            Ok(ExitCode::SUCCESS)
        }
        End::Reset if !all_dead => Err(Left::Processes.into()),
        End::Reset => {
            // Outside of a sandbox these files belong to others.
            if std::process::id() == 1 {
                let put_back = offload::run(PUT_BACK_WITHIN, move || surroundings.put_back());
                tokio::select! {
                    done = put_back => done.map_err(|_| Left::Late)??,
                    () = watchdog.beat() => {}
                }
            }
            say(&"given back; the next lease has another container");
            Ok(ExitCode::from(RESET_EXIT))
        }
    }
}

fn callers() -> Callers {
    match std::env::args().any(|argument| argument == ALLOW_LOCAL) {
        true => Callers::Anybody,
        false => Callers::OtherHosts,
    }
}

async fn listen() -> Result<TcpListener, Ended> {
    if let Ok(given) = std::env::var(LISTEN_ENV) {
        let address: SocketAddr = given.parse().map_err(|_| Ended::BadAddress(given))?;
        return TcpListener::bind(address)
            .await
            .map_err(Ended::while_doing("listening"));
    }
    // One socket for both families, or IPv4 alone if the kernel has no IPv6.
    match TcpListener::bind(("::", SANDBOXD_PORT)).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind(("0.0.0.0", SANDBOXD_PORT))
            .await
            .map_err(Ended::while_doing("listening")),
    }
}

/// Writes to the pod's log. Ignores errors: `println!` would panic if the log is closed.
fn say(what: &dyn Display) {
    let _ = writeln!(io::stdout(), "sandboxd: {what}");
}
