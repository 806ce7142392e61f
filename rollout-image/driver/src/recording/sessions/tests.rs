use super::*;
use futures::poll;

#[tokio::test]
async fn a_request_under_an_earlier_drivers_path_waits_until_the_relay_leads_to_the_new_session() {
    let sessions = Sessions::default();
    let mut waiting = Box::pin(sessions.fate("of an earlier driver", "a-1"));
    assert!(poll!(&mut waiting).is_pending());
    let other = sessions.open("a-2", "policy");
    other.led();
    assert!(poll!(&mut waiting).is_pending(), "another sandbox's session");
    let session = sessions.open("a-1", "policy");
    assert!(poll!(&mut waiting).is_pending(), "the relay leads elsewhere");
    session.led();
    assert_eq!(waiting.await, Fate::Away);
}

#[tokio::test(start_paused = true)]
async fn a_session_is_over_only_if_its_episode_has_ended() {
    let sessions = Sessions::default();
    for (ends, fate) in [(true, Fate::Over), (false, Fate::Away)] {
        let session = sessions.open("a-1", "policy");
        session.led();
        let secret = session.secret.clone();
        let mut waiting = Box::pin(sessions.fate(&secret, "a-1"));
        assert!(poll!(&mut waiting).is_pending(), "its session is open");
        match ends {
            true => session.over(),
            false => drop(session),
        }
        assert_eq!(waiting.await, fate);
        assert_eq!(sessions.fate(&secret, "a-1").await, fate);
    }
}

#[tokio::test]
async fn a_session_of_another_sandbox_is_over_for_a_request() {
    let sessions = Sessions::default();
    let session = sessions.open("a-1", "policy");
    assert!(sessions.door(&session.secret, "a-2").is_none());
    assert_eq!(sessions.fate(&session.secret, "a-2").await, Fate::Over);
}

#[tokio::test]
async fn requests_beyond_the_bound_do_not_wait() {
    let sessions = Sessions::default();
    let _all = sessions.0.held.try_acquire_many(MOST_HELD as u32).unwrap();
    let mut fate = Box::pin(sessions.fate("of an earlier driver", "a-1"));
    assert_eq!(poll!(&mut fate), std::task::Poll::Ready(Fate::Away));
}

#[test]
fn the_oldest_ended_session_is_forgotten_first() {
    let mut known = Known::default();
    for number in 0..=MOST_OVER {
        known.end(number.to_string());
    }
    assert_eq!((known.over.len(), known.ended.len()), (MOST_OVER, MOST_OVER));
    assert_eq!(known.fate("0", "a-1"), None);
    assert_eq!(known.fate("1", "a-1"), Some(Fate::Over));
}
