//! What is to be done about a run, as values.

use std::time::Duration;

use grpo_crds::grpo_run::GrpoRunStatus;
use kube::runtime::events::Event;

use crate::{admission::Candidate, desired_object::DesiredObject, pods::PodFacts};

pub const ADMITTED: &str = "Admitted";
pub const PROVISIONED: &str = "Provisioned";
pub const SUCCEEDED: &str = "Succeeded";
pub const FAILED: &str = "Failed";

/// Everything that is to be done.
pub struct Decision {
    /// Objects that should be as given here.
    pub objects: Vec<DesiredObject>,
    /// Pods to make: whose, which, and what is known of them until a watch shows them.
    pub create: Vec<(&'static str, DesiredObject, PodFacts)>,
    /// Names of pods to delete.
    pub delete_pods: Vec<String>,
    /// Names of services of earlier attempts.
    pub delete_services: Vec<String>,
    /// The pools that were made for the run go: it is over, or suspended.
    pub delete_pools: bool,
    /// The run has been over for as long as it was to be kept.
    pub delete_run: bool,
    pub claim: ClaimStep,
    pub admission: AdmissionStep,
    /// The operator's part of the status; `progress` is never in it.
    pub status: GrpoRunStatus,
    pub events: Vec<Event>,
    pub retry_in: Option<Duration>,
}

impl Decision {
    /// Does nothing but write this status.
    pub fn nothing(status: GrpoRunStatus) -> Self {
        Self {
            objects: Vec::new(),
            create: Vec::new(),
            delete_pods: Vec::new(),
            delete_services: Vec::new(),
            delete_pools: false,
            delete_run: false,
            claim: ClaimStep::Leave,
            admission: AdmissionStep::Forget,
            status,
            events: Vec::new(),
            retry_in: None,
        }
    }
}

/// What happens to the claim on the InferencePool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimStep {
    Leave,
    Take,
    Release,
}

/// What admission is told about the run.
#[derive(Clone, Debug, PartialEq)]
pub enum AdmissionStep {
    /// Its gates may be lifted when all of it fits.
    Expect(Candidate),
    /// Its gates stay, or it has none.
    Forget,
}
