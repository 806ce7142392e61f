//! Objects of our kinds, and the one that a pod or a child object belongs to.

use grpo_crds::GrpoRun;
use grpo_operator_core::{
    desired_object::Owner,
    names::{self, role},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt, core::ObjectMeta};

/// The controller of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Controlled {
    Run,
    InferencePool,
    SandboxPool,
}

impl Controlled {
    pub const ALL: [Self; 3] = [Self::Run, Self::InferencePool, Self::SandboxPool];

    pub fn name(self) -> &'static str {
        match self {
            Self::Run => "GrpoRun",
            Self::InferencePool => "InferencePool",
            Self::SandboxPool => "SandboxPool",
        }
    }

    pub fn named(kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == kind)
    }
}

/// An object of our kinds, by kind and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Parent {
    pub kind: Controlled,
    pub namespace: String,
    pub name: String,
}

impl Parent {
    pub fn run(run: &Owner) -> Self {
        Self::of_kind(Controlled::Run, run)
    }

    pub fn inference_pool(pool: &Owner) -> Self {
        Self::of_kind(Controlled::InferencePool, pool)
    }

    pub fn sandbox_pool(pool: &Owner) -> Self {
        Self::of_kind(Controlled::SandboxPool, pool)
    }

    fn of_kind(kind: Controlled, owner: &Owner) -> Self {
        Self {
            kind,
            namespace: owner.namespace.clone(),
            name: owner.name.clone(),
        }
    }

    /// The owner of a pod, by its labels.
    pub fn of_pod(pod: &Pod) -> Option<Self> {
        let labels = pod.labels();
        let (kind, label) = match labels.get(names::ROLE)?.as_str() {
            role::DRIVER | role::TRAINER => (Controlled::Run, names::RUN),
            role::ENGINE => (Controlled::InferencePool, names::INFERENCE_POOL),
            role::GATEWAY | role::SANDBOX => (Controlled::SandboxPool, names::SANDBOX_POOL),
            _ => return None,
        };
        Some(Self {
            kind,
            namespace: pod.namespace()?,
            name: labels.get(label)?.clone(),
        })
    }

    /// The owner of an object, by its controller reference.
    pub fn of_owned(metadata: &ObjectMeta) -> Option<Self> {
        let owner = metadata
            .owner_references
            .iter()
            .flatten()
            .find(|owner| owner.controller == Some(true) && owner.api_version == GrpoRun::api_version(&()))?;
        Some(Self {
            kind: Controlled::named(&owner.kind)?,
            namespace: metadata.namespace.clone()?,
            name: owner.name.clone(),
        })
    }
}
