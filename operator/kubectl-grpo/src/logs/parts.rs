//! The pods and containers of a run, and the names in front of their lines.

use crate::arguments::LogPart;
use grpo_contracts::names::{ATTEMPT, GROUP, INFERENCE_POOL, RANK, ROLE, RUN, SANDBOX_POOL, role};
use grpo_crds::GrpoRun;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// Selects every pod with relevant logs. Sandboxes have none: their commands' output is in the records.
pub fn selector() -> String {
    format!(
        "{ROLE} in ({},{},{},{})",
        role::DRIVER,
        role::TRAINER,
        role::ENGINE,
        role::GATEWAY
    )
}

/// A container with a log, in one of its lives.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    pub pod: String,
    pub uid: String,
    pub container: String,
    pub restarts: i32,
    /// Such as `trainer-1`; from the second attempt on with the attempt.
    pub name: String,
}

/// Identifies the pods of a run.
#[derive(Clone, Debug)]
pub struct Run {
    name: String,
    inference: String,
    sandboxes: String,
    wanted: Vec<LogPart>,
}

impl Run {
    pub fn of(run: &GrpoRun, wanted: &[LogPart]) -> Self {
        let name = run.name_any();
        let pool = |given: Option<String>| given.unwrap_or_else(|| name.clone());
        Self {
            inference: pool(run.spec.inference.pool_ref.as_ref().map(|pool| pool.name.clone())),
            // A gateway of another namespace is not among the listed pods.
            sandboxes: pool(run.spec.sandboxes.pool_ref.as_ref().map(|pool| match &pool.namespace {
                Some(other) if Some(other) != run.namespace().as_ref() => String::new(),
                _ => pool.name.clone(),
            })),
            wanted: wanted.to_vec(),
            name,
        }
    }

    fn owns(&self, pod: &Pod) -> bool {
        let is = |label: &str, value: &str| pod.labels().get(label).is_some_and(|found| found == value);
        let owner = match pod.labels().get(ROLE).map(String::as_str) {
            Some(role::ENGINE) => is(INFERENCE_POOL, &self.inference),
            Some(role::GATEWAY) => is(SANDBOX_POOL, &self.sandboxes),
            _ => false,
        };
        owner || is(RUN, &self.name)
    }

    /// The containers of a pod that have a log now; empty for a pod of another owner.
    pub fn parts(&self, pod: &Pod) -> Vec<Part> {
        if !self.owns(pod) {
            return Vec::new();
        }
        let Some(status) = &pod.status else { return Vec::new() };
        let containers = status
            .init_container_statuses
            .iter()
            .flatten()
            .chain(status.container_statuses.iter().flatten());
        containers
            .filter(|container| {
                let state = container.state.as_ref();
                state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
            })
            .filter_map(|container| {
                let (part, name) = name(pod, &container.name)?;
                let wanted = self.wanted.is_empty() || self.wanted.contains(&part);
                wanted.then(|| Part {
                    pod: pod.name_any(),
                    uid: pod.uid().unwrap_or_default(),
                    container: container.name.clone(),
                    restarts: container.restart_count,
                    name,
                })
            })
            .collect()
    }
}

fn name(pod: &Pod, container: &str) -> Option<(LogPart, String)> {
    let label = |key: &str| pod.labels().get(key).map(String::as_str);
    let number = |key: &str| label(key).and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
    let attempt = match number(ATTEMPT) {
        0 | 1 => String::new(),
        later => format!("@{later}"),
    };
    match label(ROLE)? {
        role::DRIVER => Some((LogPart::Driver, format!("driver{attempt}"))),
        role::TRAINER => Some((LogPart::Trainer, format!("trainer-{}{attempt}", number(RANK)))),
        role::GATEWAY => Some((LogPart::Gateway, "gateway".to_owned())),
        role::ENGINE => {
            let node = match number(RANK) {
                0 => String::new(),
                node => format!(".{node}"),
            };
            let replica = format!("{}{node}{attempt}", number(GROUP));
            match container {
                "agent" => Some((LogPart::Agent, format!("agent-{replica}"))),
                "engine" => Some((LogPart::Engine, format!("engine-{replica}"))),
                other => Some((LogPart::Engine, format!("engine-{replica}/{other}"))),
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
