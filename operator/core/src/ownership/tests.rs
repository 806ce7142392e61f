use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::json;

use super::*;
use crate::{
    desired_object::Owner,
    fixtures::{DEMO, object},
};

/// The volume claim that the demo wants, retained or not.
fn wanted(retained: bool) -> DesiredObject {
    let owner = Owner::of(&object::<grpo_crds::GrpoRun>(DEMO)).unwrap();
    let labels = names::labels([(names::RUN, "demo")]);
    let mut claim = owner.object::<PersistentVolumeClaim>("demo-store", &labels, json!({"spec": {}}));
    if retained {
        claim.object["metadata"]["ownerReferences"] = json!([]);
    }
    claim
}

fn there(metadata: Value) -> ObjectMeta {
    serde_json::from_value(metadata).unwrap()
}

fn owned_by(kind: &str, name: &str, uid: &str, controller: bool) -> Value {
    json!({"uid": "there", "ownerReferences": [
        {"apiVersion": "grpo.dev/v1alpha1", "kind": kind, "name": name, "uid": uid, "controller": controller},
    ]})
}

/// A retained volume claim of a run named demo, with this uid.
fn kept_by(uid: &str) -> Value {
    json!({
        "uid": "there",
        "labels": {"app.kubernetes.io/managed-by": "grpo-operator", "grpo.dev/run": "demo"},
        "annotations": {"grpo.dev/retained-by": uid},
    })
}

#[test]
fn only_what_nobody_has_and_what_is_owned_already_is_written() {
    let left =
        json!({"uid": "there", "labels": {"app.kubernetes.io/managed-by": "grpo-operator", "grpo.dev/run": "demo"}});
    let of_another_run =
        json!({"uid": "there", "labels": {"app.kubernetes.io/managed-by": "grpo-operator", "grpo.dev/run": "other"}});
    let apply = Some(Write::Apply { uid: "there".into() });
    // The existing object, whether a retained claim is wanted, and the expected action.
    let cases = [
        (None, false, Some(Write::Create)),
        (None, true, Some(Write::Create)),
        (Some(owned_by("GrpoRun", "demo", "uid-1", true)), false, apply.clone()),
        (Some(json!({"uid": "there"})), false, None),
        (Some(json!({"uid": "there"})), true, None),
        (Some(owned_by("GrpoRun", "demo", "uid-0", true)), false, None),
        (Some(owned_by("GrpoRun", "demo", "uid-1", false)), false, None),
        (Some(owned_by("Deployment", "db", "uid-9", true)), false, None),
        (Some(owned_by("Deployment", "db", "uid-9", true)), true, None),
        // store.retain has changed: the run's own volume claim loses its owner, or gets it back. Another run's claim
        // does neither.
        (Some(owned_by("GrpoRun", "demo", "uid-1", true)), true, apply.clone()),
        (Some(owned_by("GrpoRun", "demo", "uid-0", true)), true, None),
        (Some(kept_by("uid-1")), false, apply.clone()),
        (Some(kept_by("uid-0")), false, None),
        (Some(kept_by("uid-0")), true, apply.clone()),
        // A retained claim never gets an owner whose deletion would delete it.
        (Some(left.clone()), false, None),
        (Some(left), true, apply),
        (Some(of_another_run), true, None),
    ];
    for (existing, retained, expected) in cases {
        let said = format!("{existing:?}, retained: {retained}");
        let existing = existing.map(there);
        assert_eq!(write(existing.as_ref(), &wanted(retained)).ok(), expected, "{said}");
    }
}

#[test]
fn a_refusal_names_the_object_its_holder_and_the_next_step() {
    let said = |existing: Value| write(Some(&there(existing)), &wanted(false)).unwrap_err().to_string();
    let foreign = said(json!({"uid": "there"}));
    for words in [
        "PersistentVolumeClaim team/demo-store exists and does not belong to this GrpoRun: it has no controller",
        "does not touch it",
        "spec.store.persistentVolumeClaim.claimName",
        "give the GrpoRun another name",
    ] {
        assert!(foreign.contains(words), "{foreign}");
    }
    let held = said(owned_by("Deployment", "db", "uid-9", true));
    assert!(held.contains("its controller is Deployment db"), "{held}");
    let earlier = said(owned_by("GrpoRun", "demo", "uid-0", true));
    assert!(earlier.contains("an earlier GrpoRun demo"), "{earlier}");
    assert!(earlier.contains("tries again until it is gone"), "{earlier}");
}

#[test]
fn the_entry_of_a_create_becomes_that_of_an_apply_once() {
    let entries = |entries: &[(&str, &str, &str)]| -> Vec<ManagedFieldsEntry> {
        let entries = entries
            .iter()
            .map(|(manager, operation, subresource)| ManagedFieldsEntry {
                manager: Some((*manager).to_owned()),
                operation: Some((*operation).to_owned()),
                subresource: Some((*subresource).to_owned()),
                ..ManagedFieldsEntry::default()
            });
        entries.collect()
    };
    let (ours, other) = (names::FIELD_MANAGER, ("kube-controller-manager", "Update", "status"));
    let created = entries(&[(ours, "Update", ""), other]);
    let applied = entries(&[(ours, "Apply", ""), other]);
    assert_eq!(as_applied(Some(&created)), Some(applied.clone()));
    assert_eq!(as_applied(Some(&applied)), None);
    assert_eq!(as_applied(Some(&entries(&[other, (ours, "Update", "status")]))), None);
    assert_eq!(as_applied(None), None);
}
