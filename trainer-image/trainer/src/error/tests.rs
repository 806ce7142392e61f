use super::*;

const FULL: &str = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.11 GiB";

fn collective(message: &str) -> TrainError {
    TrainError::Collective(CollectiveError {
        doing: "all-gather",
        rank: 3,
        world: 16,
        message: message.to_owned(),
    })
}

#[test]
fn a_panic_of_tch_is_told_in_one_line_by_libtorchs_words_and_with_advice() {
    for stack in ["", "\nException raised from malloc at a.cpp:1:\nframe #0: a"] {
        let thrown = tch::TchError::Torch(format!("{FULL}{stack}"));
        // As `unwrap` says it.
        let said = format!("called `Result::unwrap()` on an `Err` value: {thrown:?}");
        let told = TrainError::of_panic(&said).in_words();
        assert_eq!(told, format!("the training thread panicked: {FULL}; {MORE_ROOM}"));
    }
    let other = TrainError::of_panic("index out of bounds\nnote");
    assert_eq!(other.in_words(), "the training thread panicked: index out of bounds");
}

#[test]
fn an_exception_of_libtorch_is_told_without_the_stack_of_cpp() {
    let thrown = tch::TchError::Torch(format!("{FULL}\nException raised from malloc at a.cpp:1"));
    let told = TrainError::Torch(thrown).in_words();
    assert!(told.contains(FULL) && told.ends_with(MORE_ROOM), "{told}");
    assert!(!told.contains('\n') && !told.contains("Exception raised"), "{told}");
}

#[test]
fn a_launcher_does_not_repeat_the_advice_of_its_rank() {
    let said = TrainError::of_panic(FULL).in_words();
    let told = TrainError::Rank {
        rank: 3,
        code: 1,
        how: "exit status: 1".to_owned(),
        said,
    };
    assert_eq!(told.in_words().matches(MORE_ROOM).count(), 1);
}

#[test]
fn a_rank_without_memory_for_a_collective_is_the_cause_and_lost_no_peer() {
    for (message, code) in [
        ("Connection closed by peer", PEER_LOST_CODE as u8),
        ("NCCL WARN Cuda failure 2 'out of memory'", 1),
        (FULL, 1),
    ] {
        assert_eq!(collective(message).exit_code(), code, "{message}");
    }
}
