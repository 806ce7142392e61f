//! Decides whether the operator may write an object under a wanted name. Pure.
//!
//! | object under the name | action |
//! |---|---|
//! | none | create; fails if another writer was faster |
//! | its controller is the wanted owner | apply, to this uid only |
//! | a retained volume claim of a run with this name, and a retained claim is wanted | apply, to this uid only |
//! | this run's own volume claim, and `store.retain` has changed | apply: removes the owner, or sets it again |
//! | any other | no write: [`NameTaken`] |

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, OwnerReference};
use serde_json::Value;

use crate::{desired_object::DesiredObject, names};

/// How a desired object is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    Create,
    /// Only to the object with this uid.
    Apply {
        uid: String,
    },
}

/// An object of another owner has the name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} exists and does not belong to this {owner}: {holder}. The operator does not touch it. {next_step}")]
pub struct NameTaken {
    what: String,
    owner: String,
    holder: String,
    next_step: String,
}

/// Decides by the existing object with the name.
pub fn write(existing: Option<&ObjectMeta>, desired: &DesiredObject) -> Result<Write, NameTaken> {
    let Some(existing) = existing else {
        return Ok(Write::Create);
    };
    let owned = is_owned_by(existing, &desired.made_for);
    let retained = is_retained(existing, desired);
    let ours = match wanted_owner(desired) {
        Some(_) => owned || retained && retained_by(existing) == Some(&desired.made_for),
        None => owned || retained,
    };
    let uid = existing.uid.clone().filter(|_| ours);
    uid.map(|uid| Write::Apply { uid })
        .ok_or_else(|| taken(Some(existing), desired))
}

/// Why a desired object cannot have its name. `existing` is `None` if the holder of the name was deleted meanwhile.
pub fn taken(existing: Option<&ObjectMeta>, desired: &DesiredObject) -> NameTaken {
    let owner = wanted_owner(desired);
    let kind = owner.and_then(|owner| owner["kind"].as_str()).unwrap_or("GrpoRun");
    let name = owner.and_then(|owner| owner["name"].as_str());
    let holder = existing.and_then(controller);
    let namesake = holder.is_some_and(|holder| holder.kind == kind && Some(holder.name.as_str()) == name);
    let (holder, next_step) = match holder {
        _ if existing.is_none() => (
            "it was deleted a moment ago".to_owned(),
            "The operator tries again".to_owned(),
        ),
        Some(holder) if owner.is_some_and(|owner| owner["uid"] == holder.uid.as_str()) => (
            "an earlier one of this name is being deleted".to_owned(),
            "The operator tries again until it is gone".to_owned(),
        ),
        Some(holder) if namesake => (
            format!(
                "its owner is an earlier {kind} {}, with which it is deleted",
                holder.name
            ),
            "The operator tries again until it is gone".to_owned(),
        ),
        Some(holder) => (
            format!("its controller is {} {}", holder.kind, holder.name),
            next_step(desired, kind),
        ),
        None => ("it has no controller".to_owned(), next_step(desired, kind)),
    };
    let namespace = desired.object["metadata"]["namespace"].as_str().unwrap_or_default();
    NameTaken {
        what: format!("{} {namespace}/{}", desired.kind(), desired.name),
        owner: kind.to_owned(),
        holder,
        next_step,
    }
}

fn next_step(desired: &DesiredObject, owner: &str) -> String {
    let otherwise = format!("give the {owner} another name, or delete the object if nothing uses it");
    match (desired.kind(), owner) {
        ("PersistentVolumeClaim", _) => format!(
            "To keep the run's store in it, name it in spec.store.persistentVolumeClaim.claimName; to leave it alone, {otherwise}"
        ),
        ("InferencePool", "GrpoRun") => {
            format!("To sample from it, name it in spec.inference.poolRef; to leave it alone, {otherwise}")
        }
        ("SandboxPool", "GrpoRun") => {
            format!("To use its sandboxes, name it in spec.sandboxes.poolRef; to leave it alone, {otherwise}")
        }
        _ => format!("To go on, {otherwise}"),
    }
}

/// The owner reference to the wanted controller; `None` for a retained volume claim.
fn wanted_owner(desired: &DesiredObject) -> Option<&Value> {
    desired.object["metadata"]["ownerReferences"].get(0)
}

fn controller(existing: &ObjectMeta) -> Option<&OwnerReference> {
    let mut owners = existing.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true))
}

/// Whether the object was left by an earlier run of the same name, or is still this run's own.
fn is_retained(existing: &ObjectMeta, desired: &DesiredObject) -> bool {
    let labels = existing.labels.as_ref();
    let alike = |key: &str| {
        let wanted = desired.object["metadata"]["labels"][key].as_str();
        wanted.is_some() && labels.and_then(|labels| labels.get(key)).map(String::as_str) == wanted
    };
    controller(existing).is_none() && alike(names::MANAGED_BY) && alike(names::RUN)
}

/// Uid of the run that keeps a volume claim beyond its own end.
fn retained_by(existing: &ObjectMeta) -> Option<&String> {
    existing.annotations.as_ref()?.get(names::RETAINED_BY)
}

/// Returns the field managers needed before the first server-side apply to an object that this operator created, or
/// `None` if they need no change.
///
/// A create counts as an update, and an apply never removes fields that an update set: a variable removed from a pool's
/// spec would stay in its gateway. So the operator's entry becomes an apply entry, as `kubectl apply --server-side`
/// does with objects of `kubectl create`.
pub fn as_applied(managers: Option<&[ManagedFieldsEntry]>) -> Option<Vec<ManagedFieldsEntry>> {
    let ours = |entry: &ManagedFieldsEntry, operation: &str| {
        entry.manager.as_deref() == Some(names::FIELD_MANAGER)
            && entry.operation.as_deref() == Some(operation)
            && entry.subresource.as_deref().unwrap_or_default().is_empty()
    };
    let managers = managers?;
    let created = managers.iter().any(|entry| ours(entry, "Update"));
    if !created || managers.iter().any(|entry| ours(entry, "Apply")) {
        return None;
    }
    let mut managers = managers.to_vec();
    for entry in managers.iter_mut().filter(|entry| ours(entry, "Update")) {
        entry.operation = Some("Apply".to_owned());
    }
    Some(managers)
}

/// Whether an object's controller has this uid.
pub fn is_owned_by(existing: &ObjectMeta, uid: &str) -> bool {
    controller(existing).is_some_and(|owner| owner.uid == uid)
}

/// Whether the object has the controller of the desired object.
pub fn is_owned_as(existing: &ObjectMeta, desired: &DesiredObject) -> bool {
    matches!(write(Some(existing), desired), Ok(Write::Apply { .. }))
}

#[cfg(test)]
mod tests;
