//! The records of a run: everything finished is one of these, in the run's store, before anybody is told about it.
//!
//! The driver and the trainer meet only here and through [`trainer`]'s small HTTP interface. A record is a JSON file
//! that is created once and never changed; it carries its schema number and who wrote it. What flows through:
//!
//! * [`turn::TurnRecord`], [`episode::EpisodeRecord`], [`rows::TokenRow`], [`episode::EpisodeMeta`]: one episode, turn
//!   by turn, token by token, and its verdict ([`ended`] puts the parts together, [`request`] is what a command-line
//!   agent asked for);
//! * [`judged`]: what a judge of turns said of them; [`reward`]: what a verdict is worth;
//! * [`batch::Batch`]: what one training step consumes; [`supervised`]: how conversations become its rows;
//! * [`event::JournalEntry`]: the driver's decisions, whose fold is the state of the run;
//! * [`settings`]: what may change while a run runs; [`validation`]: which tasks are fit;
//! * [`weights`], [`trainer`]: what the trainer publishes and answers.
//!
//! [`paths`] knows where each of them lies, [`store::Store`] how it gets there so that it stays. Readers open a
//! [`folder::RunFolder`], or asks [`look::Records`] for one page after the other; [`show`] puts an episode into words.

pub mod batch;
pub mod claim;
pub mod ended;
pub mod episode;
pub mod event;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
pub mod folder;
pub mod graded;
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
pub mod trainer;
pub mod turn;
pub mod validation;
pub mod weights;

pub use batch::{AnswerSpan, Batch, GroupRecord, Row, RowRule, StoredRow, StoredRows, Supervised};
pub use ended::{EndedEpisode, EndedError};
pub use episode::{AbortCause, AgentProcess, EpisodeKey, EpisodeMeta, EpisodeRecord, GradeRecord, RowsFile};
pub use event::{DropReason, DynamicStart, Event, JournalEntry, RunAgent};
pub use graded::GradedTask;
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
pub use trainer::{CheckpointOrder, StepMetrics, StepPhase, StepRequest, StepState, TrainerPhase, TrainerState};
pub use turn::{CalledTool, EpisodeEnd, ExecSummary, Message, Omitted, TurnAction, TurnRecord};
pub use weights::{WeightsFile, WeightsManifest};
