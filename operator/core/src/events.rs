//! Events of an object, as `kubectl describe` shows them.

use kube::runtime::events::{Event, EventType};

/// Something went as it should.
pub fn normal(reason: impl Into<String>, note: impl Into<String>) -> Event {
    event(EventType::Normal, reason.into(), note.into())
}

/// Something failed.
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
