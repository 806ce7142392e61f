//! The views of a run, as paths name them: those of the server, and those of a bundle's files.

use grpo_records::{EpisodeScope, paths};

/// One view of a run, by its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    Run,
    Scope(EpisodeScope),
    Group(EpisodeScope, u32),
    Episode(String),
    Tokens(String),
    Task(String),
}

impl Wanted {
    /// The view of a path, such as `scope/rollouts/iter-000003`. Only paths of a store are accepted.
    pub fn parse(path: &str) -> Option<Self> {
        let (kind, rest) = path.split_once('/').unwrap_or((path, ""));
        let episode = || paths::parse_episode(rest).map(|_| rest.to_owned());
        match kind {
            "run" if rest.is_empty() => Some(Self::Run),
            "scope" => paths::parse_scope(rest).map(Self::Scope),
            "group" => {
                let (scope, group) = rest.rsplit_once('/')?;
                Some(Self::Group(paths::parse_scope(scope)?, group.parse().ok()?))
            }
            "episode" => episode().map(Self::Episode),
            "tokens" => episode().map(Self::Tokens),
            "task" => paths::is_plain_name(rest).then(|| Self::Task(rest.to_owned())),
            _ => None,
        }
    }

    /// The path of the view.
    pub fn path(&self) -> String {
        match self {
            Self::Run => "run".to_owned(),
            Self::Scope(scope) => format!("scope/{}", paths::scope(scope)),
            Self::Group(scope, group) => format!("group/{}/{group}", paths::scope(scope)),
            Self::Episode(path) => format!("episode/{path}"),
            Self::Tokens(path) => format!("tokens/{path}"),
            Self::Task(instance) => format!("task/{instance}"),
        }
    }
}
