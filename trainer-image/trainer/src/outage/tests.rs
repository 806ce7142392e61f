use std::io;

use grpo_records::StoreError;

use super::*;

/// An error of a volume.
fn of_volume(error: io::Error) -> TrainError {
    TrainError::Store(StoreError::Access {
        doing: "reading",
        path: "weights/l1-v3/manifest.json".to_owned(),
        source: object_store::Error::Generic {
            store: "local",
            source: Box::new(error),
        },
    })
}

fn silent() -> TrainError {
    // EIO.
    of_volume(io::Error::from_raw_os_error(5))
}

#[test]
fn work_is_repeated_until_the_store_answers_and_the_wait_is_shown_meanwhile() {
    let waits = StoreWaits::default();
    let patience = Patience::new(Duration::from_secs(3600), Duration::ZERO, waits.clone());
    let mut shown = Vec::new();
    let done = patience.retry(|| {
        shown.push(waits.now());
        match shown.len() {
            4 => Ok("done"),
            _ => Err(silent()),
        }
    });
    assert_eq!(done.unwrap(), "done");
    assert_eq!(shown[0], None);
    for said in &shown[1..] {
        let said = said.as_ref().unwrap();
        assert!(said.starts_with("waits for the store: reading weights/l1-v3"), "{said}");
    }
    assert_eq!(waits.now(), None);
}

#[test]
fn work_whose_time_is_over_ends_with_the_last_error_and_is_not_repeated_by_an_outer_wait() {
    let waits = StoreWaits::default();
    let patience = Patience::new(Duration::from_millis(1), Duration::from_millis(2), waits.clone());
    let mut tries = 0;
    let ended = patience.retry(|| {
        tries += 1;
        Err::<(), _>(silent())
    });
    let error = ended.unwrap_err();
    assert!(matches!(error, TrainError::StoreOutage { tries: 1, .. }), "{error}");
    assert!(error.to_string().contains("weights/l1-v3/manifest.json"), "{error}");
    assert!(!error.is_outage());
    assert_eq!((tries, waits.now()), (1, None));
}

#[test]
fn without_patience_the_first_error_is_the_last() {
    let mut tries = 0;
    let ended = Patience::none().retry(|| {
        tries += 1;
        Err::<(), _>(silent())
    });
    assert!(matches!(ended, Err(TrainError::Store(_))));
    assert_eq!(tries, 1);
}

#[test]
fn only_errors_that_may_pass_are_outages() {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem, StorageFull};
    let missing = TrainError::Store(StoreError::Missing {
        path: "batches/1.json".to_owned(),
    });
    let refused = TrainError::Store(StoreError::Access {
        doing: "listing",
        path: "weights".to_owned(),
        source: object_store::Error::PermissionDenied {
            path: "weights".to_owned(),
            source: "403".into(),
        },
    });
    let unread = TrainError::Unread {
        path: String::new(),
        message: String::new(),
    };
    // EIO, ETIMEDOUT, ENOTCONN and ESTALE.
    let passing = [5, 110, 107, 116].map(|code| of_volume(io::Error::from_raw_os_error(code)));
    for error in passing.into_iter().chain([unread, TrainError::Unopened(String::new())]) {
        assert!(error.is_outage(), "{error}");
    }
    let staying = [PermissionDenied, ReadOnlyFilesystem, StorageFull].map(|kind| of_volume(kind.into()));
    let fenced = TrainError::Fenced {
        doing: "writing",
        attempt: 1,
    };
    for error in staying.into_iter().chain([missing, refused, fenced]) {
        assert!(!error.is_outage(), "{error}");
    }
}
