//! Every reason of this project's conditions, events and faults: one word for programs and for searches.
//!
//! The operator writes reasons into conditions and events; the driver declares a [terminal
//! fault](crate::exit::FAULT_CODE) with one. The page "Troubleshooting" of the book has a section for each reason, and
//! `kubectl grpo explain` prints it. A test of the plugin compares that page with [`Reason::ALL`], so a new reason
//! needs its section.

use std::fmt;

/// Generates the enum, its texts and the list of all reasons from one list.
macro_rules! reasons {
    ($($name:ident,)*) => {
        /// The cause of a condition's status, or of the end of a run.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($name,)*
        }

        impl Reason {
            /// All reasons, in the order of a run's life.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The reason with this text.
            pub fn named(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|reason| reason.text() == text)
            }

            /// The text in conditions and events.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

reasons! {
    // Condition Accepted of a run or an InferencePool.
    SpecValid,
    NotSupported,
    Tolerated,
    SpecRefused,
    // A run before it is admitted.
    NameTaken,
    StoreMissing,
    ReferenceMissing,
    ExceedsGpuMemory,
    InferencePoolMissing,
    InferencePoolClaimed,
    InferencePoolServesAnotherModel,
    InferencePoolServesTrainedWeights,
    InferencePoolTakesNoWeights,
    InferencePoolTakesNoAdapter,
    InferencePoolReportsNoExperts,
    SamplerIsFrozen,
    ExternalServerNotProbed,
    JudgeMissing,
    JudgeOwned,
    JudgeClaimed,
    JudgeServesTrainedWeights,
    SandboxPoolMissing,
    AgentImageMissing,
    QuotaExceeded,
    // Admission.
    NotEvaluated,
    WaitsForPods,
    WaitsForCapacity,
    NeverFits,
    BehindAnotherRun,
    Requeued,
    WaitsForQuota,
    ClaimsPool,
    WaitsForNodes,
    BeingScheduled,
    Admitted,
    ReplicasWait,
    // An admitted run.
    InferencePoolNotReady,
    JudgeNotReady,
    SandboxPoolNotReady,
    DriverNotReady,
    TrainerNotReady,
    DriverAttemptEnded,
    TrainerAttemptEnded,
    Running,
    Allowed,
    Suspended,
    // The end of a run.
    NotFinished,
    Finished,
    DriverFailed,
    TrainerFailed,
    DriverFault,
    // Faults that a driver declares: its configuration.
    AgentUnknown,
    ContextLengthUnknown,
    InstanceIdsUnreadable,
    PatternInvalid,
    PromptOverridesInvalid,
    PromptTooLong,
    PromptUnusable,
    TemplateUnusable,
    ModelUnavailable,
    ModelUnknown,
    // Its tasks and datasets.
    DatasetNotMounted,
    DatasetUnavailable,
    DatasetUnreadable,
    DatasetTooLarge,
    DatasetEmpty,
    NoDataset,
    NoTasks,
    NoTestCommand,
    TaskNotFound,
    TaskRowInvalid,
    TasksChanged,
    // Its store.
    StoreNotEmpty,
    StoreUnusable,
    // Its engines, graders and trainer.
    EngineRefuses,
    ModelDiverged,
    ExpertsNotReported,
    ExpertsUnusable,
    NoExperts,
    GraderUnavailable,
    NoValidEpisodes,
    TrainerUnavailable,
    TrainingFailed,
    TrainerAhead,
    WeightsCorrupt,
    WeightsNotServed,
    // InferencePool.
    AllReplicasServe,
    ReplicasNotReady,
    NotAccepted,
    WeightsServe,
    WeightsOnTheirWay,
    ProbePassed,
    ProbeNotPassed,
    // SandboxPool.
    GatewayServes,
    GatewayNotReady,
    NothingReached,
    Reached,
    ProbeFailed,
    NotProbed,
    Bounded,
    Unbounded,
    NoneFailed,
    ImageUnavailable,
    NoneStuck,
    NoAddress,
    // Failed requests of the operator, for any kind.
    ApplyFailed,
    CreateFailed,
    DeleteFailed,
    ReadFailed,
    StatusFailed,
    Unreadable,
    NotJson,
    Nameless,
    OperatorFault,
    TooSlow,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl From<Reason> for String {
    fn from(reason: Reason) -> Self {
        reason.text().to_owned()
    }
}

/// Conditions have their reason as a text.
impl PartialEq<&str> for Reason {
    fn eq(&self, other: &&str) -> bool {
        self.text() == *other
    }
}
