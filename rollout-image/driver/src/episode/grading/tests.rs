use super::Grading;
use futures::FutureExt;
use tokio::sync::watch;

#[test]
fn a_grading_that_is_given_up_counts_no_more() {
    let count = watch::channel(0).0;
    let ended = Grading::begin(&count);
    let mut given_up = Box::pin(async {
        let _grading = Grading::begin(&count);
        std::future::pending::<()>().await;
    });
    assert!(given_up.as_mut().now_or_never().is_none());
    assert_eq!(*count.borrow(), 2);
    drop(given_up);
    assert_eq!(*count.borrow(), 1);
    drop(ended);
    assert_eq!(*count.borrow(), 0);
}
