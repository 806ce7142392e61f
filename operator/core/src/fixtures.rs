//! Objects for tests, from YAML; and a check that Kubernetes understands the created objects.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount},
    networking::v1::NetworkPolicy,
    rbac::v1::{Role, RoleBinding},
    resource::v1::ResourceClaim,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    desired_object::DesiredObject,
    pods::{Failure, PodFacts, PodState},
    preview::Surroundings,
    settings::Settings,
};

pub const DEMO: &str = include_str!("../../../docs/examples/demo.yaml");

/// An object as the API server returns it: in a namespace, with a uid.
pub fn object<K: DeserializeOwned>(yaml: &str) -> K {
    let mut value: Value = serde_yaml_ng::from_str(yaml).unwrap();
    for (key, text) in [("namespace", "team"), ("uid", "uid-1"), ("resourceVersion", "1")] {
        if value["metadata"][key].is_null() {
            value["metadata"][key] = text.into();
        }
    }
    value["metadata"]["generation"] = 1.into();
    serde_json::from_value(value).unwrap()
}

pub fn pod(name: &str, attempt: u32, rank: u32, state: PodState) -> PodFacts {
    PodFacts {
        state,
        ..PodFacts::just_made(name.into(), attempt, rank)
    }
}

pub fn running() -> PodState {
    PodState::Running { ready: true }
}

pub fn ended(exit_code: i32, last_words: &str) -> PodState {
    PodState::Failed(Failure {
        exit_code: Some(exit_code),
        disrupted: false,
        refused: false,
        message: format!("ended with exit code {exit_code}"),
        last_words: Some(last_words.into()),
        at: None,
    })
}

/// Names of children, as `Kind/name`.
pub fn names(objects: &[DesiredObject]) -> Vec<String> {
    objects
        .iter()
        .map(|desired| format!("{}/{}", desired.kind(), desired.name))
        .collect()
}

pub fn find<'a>(objects: &'a [DesiredObject], kind: &str, name: &str) -> &'a Value {
    let found = objects
        .iter()
        .find(|desired| desired.kind() == kind && desired.name == name);
    &found
        .unwrap_or_else(|| panic!("there is no {kind}/{name} among {:?}", names(objects)))
        .object
}

/// A cluster without known facts.
pub fn surroundings<'a>(namespace: &'a str, settings: &'a Settings) -> Surroundings<'a> {
    Surroundings {
        namespace,
        settings,
        now: "2026-01-01T00:00:00Z".parse().unwrap(),
        gpu_memory: None,
    }
}

/// Fails if an object has a field that Kubernetes' own type lacks.
pub fn assert_understood(desired: &DesiredObject) {
    assert_known(&desired.object);
}

/// The same check for a plain object.
pub fn assert_known(object: &Value) {
    let again = match object["kind"].as_str().unwrap() {
        "ConfigMap" => reread::<ConfigMap>(object),
        "Deployment" => reread::<Deployment>(object),
        "InferencePool" => reread::<grpo_crds::InferencePool>(object),
        "NetworkPolicy" => reread::<NetworkPolicy>(object),
        "PersistentVolumeClaim" => reread::<PersistentVolumeClaim>(object),
        "Pod" => reread::<Pod>(object),
        "ResourceClaim" => reread::<ResourceClaim>(object),
        "Role" => reread::<Role>(object),
        "RoleBinding" => reread::<RoleBinding>(object),
        "SandboxPool" => reread::<grpo_crds::SandboxPool>(object),
        "Secret" => reread::<Secret>(object),
        "Service" => reread::<Service>(object),
        "ServiceAccount" => reread::<ServiceAccount>(object),
        other => panic!("tests do not know the kind {other}"),
    };
    let mut lost = Vec::new();
    let name = object["metadata"]["name"].as_str().unwrap();
    collect_lost(name, object, &again, &mut lost);
    assert!(
        lost.is_empty(),
        "{name} has fields that Kubernetes does not know: {lost:?}"
    );
}

fn reread<K: DeserializeOwned + Serialize>(object: &Value) -> Value {
    let object: K = serde_json::from_value(object.clone()).unwrap();
    serde_json::to_value(object).unwrap()
}

fn collect_lost(path: &str, made: &Value, read: &Value, lost: &mut Vec<String>) {
    match made {
        Value::Object(fields) => {
            for (name, value) in fields {
                match read.get(name) {
                    Some(read) => collect_lost(&format!("{path}.{name}"), value, read, lost),
                    None if value.as_object().is_some_and(serde_json::Map::is_empty) => {}
                    None => lost.push(format!("{path}.{name}")),
                }
            }
        }
        Value::Array(items) => {
            for (n, item) in items.iter().enumerate() {
                match read.get(n) {
                    Some(read) => collect_lost(&format!("{path}[{n}]"), item, read, lost),
                    None => lost.push(format!("{path}[{n}]")),
                }
            }
        }
        _ => {}
    }
}
