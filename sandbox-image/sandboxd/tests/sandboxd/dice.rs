//! Random damage to requests: a few rounds with the same seed in every run, or for `GRPO_FUZZ_SECONDS` with a new seed.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Duration per test, if one was given.
fn time() -> Option<Duration> {
    let seconds = std::env::var("GRPO_FUZZ_SECONDS").ok()?;
    Some(Duration::from_secs(seconds.parse().unwrap()))
}

/// `few` rounds, or as many as fit into the given time.
pub fn rounds(few: usize) -> impl Iterator<Item = usize> {
    let began = Instant::now();
    let mut told = began;
    (0..).take_while(move |round| {
        let Some(time) = time() else { return *round < few };
        if told.elapsed() > Duration::from_secs(30) {
            told = Instant::now();
            eprintln!("{round} rounds in {:?} of {time:?}", began.elapsed());
        }
        began.elapsed() < time
    })
}

/// Xorshift.
pub struct Dice(u64);

impl Dice {
    pub fn new(door: u64) -> Self {
        let run = time().map_or(0, |_| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs());
        eprintln!("dice {door} of {run}");
        Self(door.wrapping_add(run << 8))
    }

    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }

    /// Changes, removes, doubles or cuts off a few bytes.
    pub fn spoil(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut spoilt = bytes.to_vec();
        for _ in 0..=self.roll(4) {
            let at = self.roll(spoilt.len().max(1)).min(spoilt.len());
            match self.roll(5) {
                0 if at < spoilt.len() => spoilt[at] = self.roll(256) as u8,
                1 if at < spoilt.len() => drop(spoilt.remove(at)),
                2 => spoilt.insert(at, b"\0\\\"{}[]:,-9%\r\n"[self.roll(14)]),
                3 => spoilt.extend_from_within(at..(at + self.roll(64)).min(spoilt.len())),
                _ => spoilt.truncate(spoilt.len() - self.roll(spoilt.len() / 8 + 1)),
            }
        }
        spoilt
    }
}
