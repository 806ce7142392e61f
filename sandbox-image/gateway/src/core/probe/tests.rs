//! What is asked of a sandbox that reached something. Time passes only where the code waits.

use super::*;
use grpo_sandbox_protocol::Limits;
use std::cell::Cell;

/// Answers of a sandbox: errors first, then what it reaches until this question, then nothing.
async fn blocked_at_question(question: u32, errors: u32) -> (Option<u64>, u32) {
    let asked = Cell::new(0);
    let later = blocked_later(|| {
        asked.set(asked.get() + 1);
        let reached = match asked.get() < question {
            true => vec![METADATA],
            false => Vec::new(),
        };
        let answer = match asked.get() <= errors {
            true => Err("no connection".to_owned()),
            false => Ok(ProbeReply {
                reached,
                limits: Limits::default(),
            }),
        };
        async move { answer }
    });
    (later.await, asked.get())
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_is_asked_again_until_it_reaches_nothing_or_the_time_is_over() {
    let seconds = |questions: u64| Some(ASK_AGAIN.as_secs() * questions);
    assert_eq!(blocked_at_question(1, 0).await, (seconds(1), 1));
    assert_eq!(blocked_at_question(3, 0).await, (seconds(3), 3));
    assert_eq!(
        blocked_at_question(1, 2).await,
        (seconds(3), 3),
        "an error shows nothing"
    );
    let most = LATE_WITHIN.as_secs().div_ceil(ASK_AGAIN.as_secs());
    let (later, asked) = blocked_at_question(1000, 0).await;
    assert_eq!((later, u64::from(asked)), (None, most));
}
