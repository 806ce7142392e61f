//! The changes for a run, as values.

use std::time::Duration;

use grpo_crds::grpo_run::GrpoRunStatus;
use kube::runtime::events::Event;
use serde_json::Value;

use crate::{admission::Candidate, desired_object::DesiredObject, pods::PodFacts};

pub const ADMITTED: &str = "Admitted";
pub const PROVISIONED: &str = "Provisioned";
pub const SUCCEEDED: &str = "Succeeded";
pub const FAILED: &str = "Failed";

/// All changes to make.
pub struct Decision {
    /// Objects that should exist in this form.
    pub objects: Vec<DesiredObject>,
    /// Pods to create: role, object, and facts until a watch shows the pod.
    pub create: Vec<(&'static str, DesiredObject, PodFacts)>,
    /// Names of pods that the run gives back. They are deleted first, whether or not its objects can be made: an object
    /// that the API server refuses must not keep GPUs.
    pub give_back: Vec<String>,
    /// Names of pods of attempts that are over. They are deleted after the objects are made: the status is written
    /// last, and until then only these pods tell why an attempt failed.
    pub delete_pods: Vec<String>,
    /// Names of services of earlier attempts to delete.
    pub delete_services: Vec<String>,
    /// Delete the pools that were made for the run: it gives back all that it holds.
    pub delete_pools: bool,
    /// Delete the ResourceClaims on GPUs that trainer and engines of the run share, also those of an earlier spec:
    /// [`super::gpu_claims`].
    pub delete_gpu_claims: bool,
    /// Delete the run: its TTL after the end has expired.
    pub delete_run: bool,
    pub claim: ClaimStep,
    pub admission: AdmissionStep,
    pub workload: WorkloadStep,
    /// The operator's part of the status, without `progress`.
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
            give_back: Vec::new(),
            delete_pods: Vec::new(),
            delete_services: Vec::new(),
            delete_pools: false,
            delete_gpu_claims: false,
            delete_run: false,
            claim: ClaimStep::Leave,
            admission: AdmissionStep::Forget,
            workload: WorkloadStep::Leave,
            status,
            events: Vec::new(),
            retry_in: None,
        }
    }
}

/// The change of the claim on the InferencePool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimStep {
    Leave,
    Take,
    Release,
}

/// The run's request to admission.
#[derive(Clone, Debug, PartialEq)]
pub enum AdmissionStep {
    /// Lift its gates when the whole run fits.
    Expect(Candidate),
    /// Keep its gates, or it has none.
    Forget,
}

/// The change of the run's Workload, by which it asks Kueue for quota.
#[derive(Clone, Debug)]
pub enum WorkloadStep {
    Leave,
    Create(Box<DesiredObject>),
    Delete,
    /// A merge patch of its status.
    Status(Value),
}
