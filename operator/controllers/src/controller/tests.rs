use super::*;

fn panicking() -> String {
    panic!("called `Option::unwrap()` on a `None` value")
}

#[tokio::test(start_paused = true)]
async fn a_panic_and_a_reconcile_without_end_are_errors_of_their_object() {
    let panics = contained(async { Err::<(), _>(Error::Nameless { what: panicking() }) }).await;
    let Err(error @ Error::Panicked { .. }) = panics else {
        panic!("{panics:?}");
    };
    assert!(error.to_string().contains("`None` value"), "{error}");
    assert!(error.is_for_people());
    let endless = contained(std::future::pending::<Result<(), Error>>()).await;
    assert!(matches!(endless, Err(Error::TooSlow { .. })), "{endless:?}");
    assert!(contained(async { Ok(()) }).await.is_ok());
}
