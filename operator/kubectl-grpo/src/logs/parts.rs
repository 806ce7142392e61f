//! Which pods and containers belong to a run, and what their lines are called.

use crate::arguments::LogPart;
use grpo_contracts::names::{ATTEMPT, INFERENCE_POOL, NODE, RANK, ROLE, RUN, SANDBOX_POOL, role};
use grpo_crds::GrpoRun;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// Selects every pod whose logs may be of interest. Sandboxes have none: what runs in them is in the records.
pub fn selector() -> String {
    format!(
        "{ROLE} in ({},{},{},{})",
        role::DRIVER,
        role::TRAINER,
        role::ENGINE,
        role::GATEWAY
    )
}

/// A container that has a log, in one of its lives.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    pub pod: String,
    pub uid: String,
    pub container: String,
    pub restarts: i32,
    /// Such as `trainer-1`; with the attempt from the second on.
    pub name: String,
}

/// What the pods of a run are told by.
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
            sandboxes: pool(run.spec.sandboxes.pool_ref.as_ref().map(|pool| pool.name.clone())),
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

    /// The containers of a pod that have a log now; none for a pod of somebody else.
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
            let replica = number(RANK);
            let node = match number(NODE) {
                0 => String::new(),
                node => format!(".{node}"),
            };
            match container {
                "agent" => Some((LogPart::Agent, format!("agent-{replica}{node}"))),
                "engine" => Some((LogPart::Engine, format!("engine-{replica}{node}"))),
                other => Some((LogPart::Engine, format!("engine-{replica}{node}/{other}"))),
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn run(wanted: &[LogPart]) -> Run {
        let run: GrpoRun = serde_json::from_value(json!({
            "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun", "metadata": {"name": "demo", "namespace": "team"},
            "spec": {
                "model": {"image": {"reference": "m"}}, "tasks": {}, "agent": {"bash": {}},
                "inference": {"poolRef": {"name": "shared"}},
                "sandboxes": {"pool": {"max": 1}},
                "store": {"persistentVolumeClaim": {"claimName": "c"}},
            },
        }))
        .unwrap();
        Run::of(&run, wanted)
    }

    fn pod(labels: Value, states: &[(&str, Value)]) -> Pod {
        let containers: Vec<Value> = states
            .iter()
            .map(|(name, state)| json!({"name": name, "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": state}))
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": "p", "uid": "u", "labels": labels},
            "status": {"phase": "Running", "containerStatuses": containers},
        }))
        .unwrap()
    }

    fn running() -> Value {
        json!({"running": {}})
    }

    fn named(run: &Run, pod: &Pod) -> Vec<String> {
        run.parts(pod).into_iter().map(|part| part.name).collect()
    }

    #[test]
    fn parts_are_called_by_role_rank_and_later_attempts() {
        let run = run(&[]);
        let of = |labels: Value, container: &str| named(&run, &pod(labels, &[(container, running())]));
        assert_eq!(
            of(json!({RUN: "demo", ROLE: "driver", ATTEMPT: "1"}), "driver"),
            ["driver"]
        );
        assert_eq!(
            of(
                json!({RUN: "demo", ROLE: "trainer", ATTEMPT: "3", RANK: "1"}),
                "trainer"
            ),
            ["trainer-1@3"]
        );
        assert_eq!(
            of(json!({RUN: "demo", SANDBOX_POOL: "demo", ROLE: "gateway"}), "gateway"),
            ["gateway"]
        );
        let engine = pod(
            json!({INFERENCE_POOL: "shared", ROLE: "engine", RANK: "2"}),
            &[("engine", running()), ("agent", running())],
        );
        assert_eq!(named(&run, &engine), ["engine-2", "agent-2"]);
    }

    #[test]
    fn pods_of_other_runs_and_sandboxes_are_left_out() {
        let run = run(&[]);
        for labels in [
            json!({RUN: "other", ROLE: "driver"}),
            json!({INFERENCE_POOL: "demo", ROLE: "engine"}),
            json!({RUN: "demo", ROLE: "sandbox"}),
            json!({}),
        ] {
            assert_eq!(
                named(&run, &pod(labels.clone(), &[("c", running())])),
                [""; 0],
                "{labels}"
            );
        }
    }

    #[test]
    fn a_container_has_a_log_once_it_has_begun_and_only_wanted_parts_are_shown() {
        let labels = json!({INFERENCE_POOL: "shared", ROLE: "engine"});
        let states = [
            ("engine", json!({"waiting": {"reason": "ContainerCreating"}})),
            ("agent", json!({"terminated": {"exitCode": 0}})),
        ];
        assert_eq!(named(&run(&[]), &pod(labels.clone(), &states)), ["agent-0"]);
        let both = [("engine", running()), ("agent", running())];
        assert_eq!(named(&run(&[LogPart::Engine]), &pod(labels, &both)), ["engine-0"]);
    }
}
