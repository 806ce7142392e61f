use half::bf16;
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use crate::{DeltaError, Encoder, FRAME, apply};

/// The delta from `old` to `new`, added in pieces of `piece` bytes.
fn delta(old: &[u8], new: &[u8], piece: usize) -> Vec<u8> {
    let mut encoder = Encoder::new().unwrap();
    let mut out = Vec::new();
    encoder.begin(&mut out);
    for (at, new) in new.chunks(piece).enumerate() {
        let old = old.get(at * piece..).unwrap_or_default();
        encoder.add(&old[..old.len().min(new.len())], new, &mut out).unwrap();
    }
    encoder.end(&mut out);
    out
}

fn applied(base: &[u8], delta: &[u8]) -> Result<Vec<u8>, DeltaError> {
    let mut out = Vec::new();
    apply(base, delta, &mut out).map(|made| {
        assert_eq!(made, out.len() as u64);
        out
    })
}

/// bf16 values of a model, and the same ones after a step that moves each by `step`.
fn stepped(count: usize, step: f32) -> (Vec<u8>, Vec<u8>) {
    let mut random = SmallRng::seed_from_u64(3);
    let (mut old, mut new) = (Vec::new(), Vec::new());
    for _ in 0..count {
        // The sum of uniform values is close enough to a normal distribution of this deviation.
        let value = (0..12).map(|_| random.random::<f32>() - 0.5).sum::<f32>() * 0.02;
        let sign = if random.random::<bool>() { step } else { -step };
        old.extend(bf16::from_f32(value).to_le_bytes());
        new.extend(bf16::from_f32(value + sign).to_le_bytes());
    }
    (old, new)
}

#[test]
fn a_step_of_a_small_rate_takes_a_fortieth_of_the_bytes() {
    let (old, new) = stepped(1_000_003, 1e-6);
    let delta = delta(&old, &new, usize::MAX);
    let share = delta.len() as f64 / new.len() as f64;
    assert!((0.001..0.025).contains(&share), "{share}");
    assert!(applied(&old, &delta).unwrap() == new);
}

#[test]
fn equal_files_take_a_few_bytes_and_unlike_ones_little_more_than_the_new_one() {
    let mut random = SmallRng::seed_from_u64(4);
    let (mut old, mut new) = (vec![0; 3 * FRAME + 10], vec![0; 3 * FRAME + 10]);
    random.fill_bytes(&mut old);
    random.fill_bytes(&mut new);
    assert_eq!(delta(&old, &old, usize::MAX).len(), 8 + 4 * 5 + 9);
    let unlike = delta(&old, &new, usize::MAX);
    assert_eq!(unlike.len(), 8 + 4 * 5 + new.len() + 9);
    assert!(applied(&old, &unlike).unwrap() == new);
}

#[test]
fn a_file_may_be_longer_than_its_base() {
    let new: Vec<u8> = (0..2 * FRAME as u32 + 5).map(|at| (at / 7) as u8).collect();
    for base in [&[][..], &new[..FRAME - 2], &new[..FRAME + 1], &new] {
        for piece in [FRAME / 2, FRAME + 6, usize::MAX] {
            assert!(applied(base, &delta(base, &new, piece)).unwrap() == new);
        }
    }
}

#[test]
fn a_base_that_ends_early_is_refused() {
    let (old, new) = stepped(FRAME, 1e-6);
    let delta = delta(&old, &new, usize::MAX);
    let refused = applied(&old[..old.len() - 2], &delta).unwrap_err();
    assert!(matches!(refused, DeltaError::ShortBase { .. }), "{refused}");
}

#[test]
fn a_delta_that_ends_anywhere_is_refused() {
    let (old, new) = stepped(600, 1e-4);
    let delta = delta(&old, &new, 400);
    for end in 0..delta.len() {
        applied(&old, &delta[..end]).unwrap_err();
    }
}

#[test]
fn bytes_after_the_end_are_refused() {
    let (old, new) = stepped(600, 1e-4);
    let mut delta = delta(&old, &new, 400);
    delta.push(0);
    applied(&old, &delta).unwrap_err();
}

#[test]
fn a_delta_without_one_of_its_frames_is_refused() {
    let (old, new) = stepped(600, 0.0);
    let mut delta = delta(&old, &new, 400);
    // A frame of equal bytes has five.
    delta.drain(8..13);
    let refused = applied(&old, &delta).unwrap_err();
    assert!(
        matches!(refused, DeltaError::Incomplete { made: 800, said: 1200 }),
        "{refused}"
    );
}

proptest! {
    #[test]
    fn a_delta_makes_the_new_file_whatever_the_two_are(
        old in prop::collection::vec(any::<u8>(), 0..3000),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..200),
        length in 0..3500_usize,
        piece in 1..1500_usize,
    ) {
        let mut new = old.clone();
        new.resize(length, 7);
        for (at, value) in changes {
            if !new.is_empty() {
                let at = at.index(new.len());
                new[at] = value;
            }
        }
        prop_assert_eq!(applied(&old, &delta(&old, &new, piece)).unwrap(), new);
    }

    #[test]
    fn a_damaged_delta_makes_a_file_or_is_refused(
        step in prop::sample::select(vec![1e-6_f32, 1e-4, 1.0]),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let (old, new) = stepped(3000, step);
        let mut delta = delta(&old, &new, 1000);
        for (at, value) in damage {
            let at = at.index(delta.len());
            delta[at] = value;
        }
        // Neither of them is a panic, and neither takes more memory than a frame.
        let _ = applied(&old, &delta);
    }
}
