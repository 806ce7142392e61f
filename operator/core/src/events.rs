//! Events of an object, as `kubectl describe` shows them.

use kube::runtime::events::{Event, EventType};

/// An event of normal operation.
pub fn normal(reason: impl Into<String>, note: impl Into<String>) -> Event {
    event(EventType::Normal, reason.into(), note.into())
}

/// An event of a failure.
pub fn warning(reason: impl Into<String>, note: impl Into<String>) -> Event {
    event(EventType::Warning, reason.into(), note.into())
}

fn event(type_: EventType, reason: String, note: String) -> Event {
    Event {
        type_,
        reason,
        note: Some(note),
        action: "Reconcile".to_owned(),
        secondary: None,
    }
}
