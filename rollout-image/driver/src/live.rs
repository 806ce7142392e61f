//! Changes of a run that runs. The operator rewrites `run.json`, the kubelet brings it into the pod, and between two
//! pieces of work the driver applies the changes that are allowed. It reports all other changes and ignores them.
//!
//! The journal holds the settings in force: the driver samples all episodes of an iteration or evaluation with the same
//! settings, even if a restarted driver finishes it.

use crate::config::Settings;
use crate::fault::TerminalFault;
use grpo_contracts::RunConfig;
use grpo_contracts::live::OtherRunError;
use grpo_records::settings::LiveSettings;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// The source of changes.
#[derive(Clone, Debug)]
pub enum Source {
    /// The file this process was started with.
    File {
        path: PathBuf,
        started_with: Box<RunConfig>,
    },
    /// No source: the given settings stay in force.
    Fixed,
}

/// Why the driver does not apply a `run.json`.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    #[error("reading {path}: {source}")]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{path} is no run.json: {source}")]
    NotJson { path: PathBuf, source: serde_json::Error },
    #[error("{path} is not this run's: {source}")]
    Foreign { path: PathBuf, source: OtherRunError },
    #[error("{path} asks for what is not executed: {source}")]
    Unsupported { path: PathBuf, source: TerminalFault },
}

/// The content of the file at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveObservation {
    pub settings: LiveSettings,
    /// Paths below `spec` that changed but must not.
    pub ignored: Vec<String>,
}

struct State {
    settings: LiveSettings,
    ignored: Vec<String>,
    complaint: Option<String>,
}

/// The settings in force and the source of changes.
pub struct Live {
    source: Source,
    given: LiveSettings,
    state: Mutex<State>,
}

impl Live {
    /// `known`: the settings in force by the journal.
    pub fn new(source: Source, given: LiveSettings, known: Option<LiveSettings>) -> Self {
        let state = State {
            settings: known.unwrap_or_else(|| given.clone()),
            ignored: Vec::new(),
            complaint: None,
        };
        Self {
            source,
            given,
            state: Mutex::new(state),
        }
    }

    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The settings in force.
    pub fn now(&self) -> LiveSettings {
        self.with(|state| state.settings.clone())
    }

    /// Why the file is not applied, for people.
    pub fn complaint(&self) -> Option<String> {
        self.with(|state| state.complaint.clone())
    }

    /// Reads the file. Returns the settings to apply if they are new. Logs an error once; the settings stay unchanged
    /// then.
    pub async fn look(&self) -> Option<LiveSettings> {
        match self.observe().await {
            Ok(seen) => self.with(|state| {
                state.complaint = None;
                if seen.ignored != state.ignored && !seen.ignored.is_empty() {
                    tracing::warn!(
                        fields = seen.ignored.join(", "),
                        "changed in run.json, and not taken over while the run runs"
                    );
                }
                state.ignored = seen.ignored;
                (seen.settings != state.settings).then_some(seen.settings)
            }),
            Err(error) => self.with(|state| {
                let complaint = format!("going on with the settings as they were: {error}");
                if state.complaint.as_ref() != Some(&complaint) {
                    tracing::warn!(%error, "run.json is not taken over");
                }
                state.complaint = Some(complaint);
                None
            }),
        }
    }

    /// Puts settings in force that are in the journal.
    pub fn take(&self, settings: LiveSettings) {
        self.with(|state| state.settings = settings);
    }

    async fn observe(&self) -> Result<LiveObservation, LiveError> {
        let (path, started_with) = match &self.source {
            Source::Fixed => {
                return Ok(LiveObservation {
                    settings: self.given.clone(),
                    ignored: Vec::new(),
                });
            }
            Source::File { path, started_with } => (path.clone(), started_with),
        };
        let bytes = tokio::fs::read(&path).await.map_err(|source| LiveError::Unreadable {
            path: path.clone(),
            source,
        })?;
        let newer: RunConfig = serde_json::from_slice(&bytes).map_err(|source| LiveError::NotJson {
            path: path.clone(),
            source,
        })?;
        let taken = started_with
            .with_live_changes_of(&newer)
            .map_err(|source| LiveError::Foreign {
                path: path.clone(),
                source,
            })?;
        let settings = Settings::of(&taken.config).map_err(|source| LiveError::Unsupported { path, source })?;
        Ok(LiveObservation {
            settings: settings.live(),
            ignored: taken.ignored,
        })
    }
}
