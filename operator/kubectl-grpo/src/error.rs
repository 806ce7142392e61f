//! The plugin's errors, each with the next step.

use grpo_crds::grpo_run::Mode;
use grpo_records::look::Refusal;
use kube::core::response::StatusSummary;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Usage(String),
    #[error("no cluster to talk to: {0}; set KUBECONFIG, or give --kubeconfig or --context")]
    Kubeconfig(String),
    #[error("the cluster cannot be reached by a proxy: {0}; correct it, or set NO_PROXY to the server's host")]
    Proxy(String),
    #[error("there is no GrpoRun (grpo.dev) {name} in namespace {namespace}{}", .there.as_ref().map(|there| format!("; there is: {there}")).unwrap_or_else(|| "; `kubectl grpo status -A` lists all".into()))]
    NoRun {
        name: String,
        namespace: String,
        there: Option<String>,
    },
    #[error(
        "this cluster knows no GrpoRun (grpo.dev): grpo-operator is not installed in it, or --context names another cluster"
    )]
    NotInstalled,
    #[error(
        "you may not {verb} {resource} in {place}: ask for a role that allows it (`view` for status and logs, `edit` for the others; prepull also needs to list nodes); `kubectl auth can-i {verb} {resource} {flag}` tells when you may"
    )]
    Forbidden {
        verb: &'static str,
        resource: &'static str,
        place: String,
        flag: String,
    },
    #[error("{doing} {object}: {source}")]
    Api {
        doing: String,
        object: String,
        source: Box<kube::Error>,
    },
    #[error(transparent)]
    Records(#[from] Refusal),
    #[error(
        "pod {pod} answered 404 about {route}: its driver is older than this plugin; give --reader-image IMAGE (the operator's driver image of this version), or `kubectl grpo copy` the store and give --from"
    )]
    OlderDriver { pod: String, route: String },
    #[error("the viewer has ended")]
    Closed,
    #[error("the viewer: {0}")]
    Viewer(String),
    #[error("the files of episode {episode} cannot be read: {why}; `kubectl grpo copy` the store and check them")]
    EpisodeFile { episode: String, why: String },
    #[error(
        "episode {episode} has answers that came as text, so its token ids are not those of a model: give --format messages"
    )]
    NoTokens { episode: String },
    #[error("{dir} is no copy of a run's store: it has no folder journal/")]
    NoStore { dir: PathBuf },
    #[error(
        "GrpoRun {run} has no driver that runs, and none was found whose image could read its store; give --reader-image IMAGE (the operator's driver image)"
    )]
    NoReaderImage { run: String },
    #[error(
        "GrpoRun {run} has no records yet: its driver has not begun, and PersistentVolumeClaim {claim} has no volume. Ask again when the run has begun"
    )]
    NoVolumeYet { run: String, claim: String },
    #[error("pod {pod}, which {purpose}, does not run: {why}")]
    ServingPod { pod: String, purpose: String, why: String },
    #[error("asking pod {pod}: {why}")]
    PodConnection { pod: String, why: String },
    #[error("the answer of grpo-driver tasks is not whole: {0}; does --reader-image name a driver of this version?")]
    TasksAnswer(String),
    #[error("a run of this spec would end with {reason}: {message}")]
    TasksFault { reason: String, message: String },
    #[error(
        "no image of the driver was found in namespace {namespace}, and you may not look at the operator; give --reader-image IMAGE (the operator's driver image)"
    )]
    NoDriverImage { namespace: String },
    #[error("reading the list of images {file}: {source}; give a file with one image a line, or - for standard input")]
    ImagesFile { file: PathBuf, source: std::io::Error },
    #[error("no Linux node has the labels {selector:?}; `kubectl get nodes --show-labels` shows what nodes have")]
    NoNodes { selector: String },
    #[error("{failed} of {all} pulls failed")]
    PullsFailed { failed: usize, all: usize },
    #[error("GrpoRun {run} has no set {set}; it has: {there}")]
    NoSet { run: String, set: String, there: String },
    #[error(
        "GrpoRun {run} has not read the rows of tasks.{set} yet; `kubectl grpo status {run}` says what it waits for"
    )]
    NoRows { run: String, set: String },
    #[error(
        "GrpoRun {run} has mode {mode:?}, and only mode Validate finds out which tasks are fit; `kubectl grpo tasks {run} -o ids` lists all of its tasks"
    )]
    NotValidating { run: String, mode: Mode },
    #[error(
        "GrpoRun {run} has not validated all tasks of tasks.{set} yet; `kubectl grpo status {run}` says how far it is"
    )]
    NotValidated { run: String, set: String },
    #[error("{place} has several sets; give --set with one of them: {there}")]
    WhichSet { place: String, there: String },
    #[error(
        "the store has no list of the fit tasks: a run of mode Validate writes it, and `kubectl grpo copy RUN DEST --rows` copies it"
    )]
    NoValidation,
    #[error("the store has no list of set {set}; it has those of: {there}")]
    NoList { set: String, there: String },
    #[error(transparent)]
    Manifest(#[from] crate::manifest::ManifestError),
    #[error(transparent)]
    Plan(#[from] crate::plan::error::PlanError),
    #[error(transparent)]
    Copy(#[from] crate::copy::error::CopyError),
    #[error("{0}")]
    NoEpisode(String),
    #[error("GrpoRun {run} has no pods yet; `kubectl grpo status {run}` says what it waits for")]
    NoPods { run: String },
    #[error(
        "GrpoRun {run} has no pods left; `kubectl grpo status {run}` says how it ended, and its episodes stay readable"
    )]
    PodsGone { run: String },
    #[error(
        "GrpoRun {run} failed: {reason}: {message}\n`kubectl grpo status {run} -n {namespace}` shows what it was doing, `kubectl grpo logs {run} -n {namespace}` its last words"
    )]
    RunFailed {
        run: String,
        namespace: String,
        reason: String,
        message: String,
    },
    #[error(
        "GrpoRun {run} has not ended after {}s: {state}; wait again, or `kubectl grpo status {run}` says what it waits for",
        .timeout.as_secs()
    )]
    StillRuns {
        run: String,
        timeout: Duration,
        state: String,
    },
    #[error("GrpoRun {run} was deleted before it ended; `kubectl grpo status` lists the runs that there are")]
    RunDeleted { run: String },
    #[error(
        "watching GrpoRun {run} failed {tries} times in a row: {why}; once `kubectl grpo status {run}` works, give the command again"
    )]
    WatchLost { run: String, tries: u32, why: String },
    #[error(
        "{reason} is no reason of grpo-operator{}; `kubectl grpo explain` lists all",
        match .similar.is_empty() { true => String::new(), false => format!("; similar: {}", .similar.join(", ")) }
    )]
    NoReason { reason: String, similar: Vec<String> },
    #[error(
        "{unread} of {all} logs could not be read to their end; `kubectl get nodes` shows whether their nodes are ready"
    )]
    LogsUnread { unread: usize, all: usize },
    #[error("writing: {0}")]
    Output(#[from] std::io::Error),
    #[error("interrupted")]
    Interrupted,
}

/// A request, with its verb and resource, for the error after a refusal.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    pub verb: &'static str,
    pub resource: &'static str,
    /// `None` for all namespaces.
    pub namespace: Option<&'a str>,
    pub name: &'a str,
}

impl Asking<'_> {
    /// Explains a refusal or failure of this request.
    pub fn failed(self, error: kube::Error) -> Error {
        if refused(&error, 403) {
            let (place, flag) = match self.namespace {
                Some(namespace) => (format!("namespace {namespace}"), format!("-n {namespace}")),
                None => ("all namespaces".to_owned(), "-A".to_owned()),
            };
            return Error::Forbidden {
                verb: self.verb,
                resource: self.resource,
                place,
                flag,
            };
        }
        Error::Api {
            doing: format!("{} {}", self.verb, self.resource),
            object: self.name.to_owned(),
            source: Box::new(error),
        }
    }
}

/// Whether the API server answered with this code. A refused upgrade carries it in another place.
pub fn refused(error: &kube::Error, code: u16) -> bool {
    match error {
        kube::Error::Api(status) => status.code == code && status.status != Some(StatusSummary::Success),
        kube::Error::UpgradeConnection(kube::client::UpgradeConnectionError::ProtocolSwitch(status)) => {
            status.as_u16() == code
        }
        _ => false,
    }
}

/// The refusal behind a watch that cannot begin. A watch recovers from all other errors by itself.
pub fn watch_refused(error: kube::runtime::watcher::Error) -> Option<kube::Error> {
    use kube::runtime::watcher::Error::{InitialListFailed, WatchStartFailed};
    match error {
        InitialListFailed(error) | WatchStartFailed(error) if refused(&error, 403) => Some(error),
        _ => None,
    }
}

impl Error {
    /// The exit code: 2 for wrong arguments, 3 for a failed run, 4 for a run that has not ended, 130 after Ctrl-C, and
    /// 1 for all other errors.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::RunFailed { .. } => 3,
            Self::StillRuns { .. } => 4,
            Self::Interrupted => 130,
            _ => 1,
        }
    }

    /// The reader of the output has closed it, as `head` does: not an error.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe)
    }
}
