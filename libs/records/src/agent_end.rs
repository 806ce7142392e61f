//! How the agent of an attempt ended, before the episode's record has it.

use crate::episode::AgentProcess;
use crate::record::{Record, Writer};
use crate::turn::EpisodeEnd;
use serde::{Deserialize, Serialize};

/// `…/end.json`: exists until `traj.json` has the end. It is durable before the patch is taken, because most ends of a
/// command-line agent, and a time limit within an answer, are in no turn. It also proves that a driver saw the agent
/// end: without it, an agent that a later driver finds ended may have given up while no driver answered it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentEndRecord {
    pub schema: u32,
    pub writer: Writer,
    pub end: EpisodeEnd,
    /// The command-line agent, if the episode had one and its process ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<AgentProcess>,
}

impl Record for AgentEndRecord {}
