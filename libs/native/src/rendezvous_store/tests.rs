use super::*;

#[path = "../../tests/native/port.rs"]
mod port;

fn ranks_meet(port: u16) -> Rendezvous {
    Rendezvous {
        rank: 0,
        world: 2,
        address: "127.0.0.1".to_owned(),
        port,
        ..Rendezvous::alone()
    }
}

/// Rank 0 of two, at a free port.
fn somewhere() -> Rendezvous {
    ranks_meet(port::free_port())
}

/// A rank that joins a group waits at the store for the other ranks' addresses, and locks its connection meanwhile.
#[test]
fn the_watchdog_gets_an_answer_while_the_training_thread_waits_at_the_store() {
    let at = somewhere();
    let store = Arc::new(RendezvousStore::reach(&at).unwrap());
    let watch = Watch {
        store: Some(store.clone()),
        asked: Some(Arc::new(RendezvousStore::reach_again(&at).unwrap())),
        progress: Arc::default(),
    };
    let (waits, begun) = std::sync::mpsc::channel();
    let (waiting, meets) = (store.clone(), at.clone());
    let training = std::thread::spawn(move || {
        waits.send(()).unwrap();
        waiting.wait_for_all(&meets)
    });
    begun.recv().unwrap();
    // Every answer comes while rank 1 is missing, whether the wait has begun or not.
    for _ in 0..20 {
        let positions = watch.positions(Duration::from_secs(5)).unwrap();
        assert_eq!(positions, [Some(Position::default()), None]);
    }
    assert!(!training.is_finished());
    let second = Rendezvous { rank: 1, ..at };
    RendezvousStore::reach(&second).unwrap();
    training.join().unwrap().unwrap();
}

#[test]
fn a_signal_reaches_a_rank_that_waits_for_it_and_one_that_comes_later() {
    let at = somewhere();
    let first = RendezvousStore::reach(&at).unwrap();
    let second = RendezvousStore::reach(&Rendezvous { rank: 1, ..at.clone() }).unwrap();
    let waiting = std::thread::spawn(move || second.wait_for_signal("devices"));
    first.signal("another").unwrap();
    assert!(!waiting.is_finished());
    first.signal("devices").unwrap();
    waiting.join().unwrap().unwrap();
    let later = RendezvousStore::reach(&Rendezvous { rank: 1, ..at }).unwrap();
    later.wait_for_signal("devices").unwrap();
}

#[test]
fn a_rank_that_waits_for_a_signal_fails_when_rank_0_is_gone() {
    let at = somewhere();
    let first = RendezvousStore::reach(&at).unwrap();
    let second = RendezvousStore::reach(&Rendezvous { rank: 1, ..at }).unwrap();
    let waiting = std::thread::spawn(move || second.wait_for_signal("devices"));
    drop(first);
    waiting.join().unwrap().unwrap_err();
}

#[test]
fn a_position_is_read_as_it_was_written() {
    for at in [
        Position::default(),
        Position {
            number: 7,
            within: 2,
            busy: true,
            doing: "writing weights l1-v3".to_owned(),
        },
    ] {
        assert_eq!(Position::parse(&at.to_string()), Some(at));
    }
    assert_eq!(Position::parse("x 1"), None);
}
