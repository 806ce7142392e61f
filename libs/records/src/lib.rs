//! The records of a run. Finished work is in the run's store as one of these before any process reports it.
//!
//! The driver and the trainer exchange data only through records and [`trainer`]'s small HTTP interface. A record is a
//! JSON file that is created once and never changed. It carries its schema number and its writer. What flows through:
//!
//! * [`turn::TurnRecord`], [`episode::EpisodeRecord`], [`rows::TokenRow`], [`episode::EpisodeMeta`]: one episode, turn
//!   by turn, token by token, and its verdict ([`ended`] joins the parts, [`request`] records the requests of a
//!   command-line agent, [`chat`] the parts of messages);
//! * [`agent_end::AgentEndRecord`]: the end of an agent, until its episode's record has it;
//! * [`dataset`]: an episode as rows for supervised training;
//! * [`judged`]: the votes of a judge of turns; [`reward`]: how a verdict becomes a reward;
//! * [`batch::Batch`]: the input of one training step; [`supervised`]: how conversations become its rows;
//! * [`event::JournalEntry`]: the driver's decisions, whose fold is the state of the run;
//! * [`iteration`]: what an iteration was, in numbers;
//! * [`settings`]: the settings that may change during a run; [`validation`]: which tasks are fit;
//! * [`weights`], [`trainer`]: what the trainer publishes and answers; [`token_stats`]: what it computed for each
//!   token.
//!
//! [`paths`] has the path of each record, [`store::Store`] writes records durably. Readers open a
//! [`folder::RunFolder`], or read pages from [`look::Records`]; [`show`] renders an episode as text.

pub mod agent_end;
pub mod batch;
pub mod chat;
pub mod claim;
pub mod dataset;
pub mod ended;
pub mod episode;
pub mod event;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
pub mod folder;
pub mod graded;
pub mod iteration;
pub mod journal;
pub mod judged;
pub mod look;
pub mod outcome;
pub mod paths;
pub mod record;
pub mod request;
pub mod reward;
pub mod rows;
pub mod scope;
pub mod settings;
pub mod show;
pub mod side;
pub mod state;
pub mod store;
pub mod supervised;
pub mod token_stats;
pub mod trainer;
pub mod turn;
pub mod validation;
pub mod verdict;
pub mod weights;

pub use agent_end::AgentEndRecord;
pub use batch::{AnswerSpan, Batch, GroupRecord, Row, RowRule, StoredRow, StoredRows, Supervised};
pub use chat::{CalledTool, ChatPrompt, ChatTurn, MessageParts, ObservedMessage};
pub use ended::{EndedEpisode, EndedError};
pub use episode::{AbortCause, AgentProcess, EpisodeKey, EpisodeMeta, EpisodeRecord, GradeRecord, RowsFile};
pub use event::{DropReason, DynamicStart, Event, JournalEntry, RunAgent};
pub use graded::GradedTask;
pub use iteration::IterationRecord;
pub use journal::{Journal, JournalError};
pub use judged::{JudgedTurn, ProcessRule, ProcessScores, TurnScore, Vote, VoteEnd};
pub use outcome::{Outcome, VoidReason};
pub use record::{Record, Role, SCHEMA, Writer};
pub use request::{Branch, Overruled, RequestRecord};
pub use reward::{RewardAnswer, RewardRule};
pub use rows::{ExpertsSpan, RowsError, TokenRow, WeightsSpan};
pub use scope::EpisodeScope;
pub use state::{IterationState, Promotion, RunState};
pub use store::{Created, RunStore, Store, StoreError};
pub use trainer::{
    CheckpointOrder, DeviceGrant, StepMetrics, StepPhase, StepRequest, StepState, TrainerPhase, TrainerState,
};
pub use turn::{EpisodeEnd, ExecSummary, Message, Omitted, TurnAction, TurnRecord};
pub use verdict::VerdictRecord;
pub use weights::{Canary, WeightsDelta, WeightsFile, WeightsManifest};
