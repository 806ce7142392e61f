//! Compares the tokens that a batch trains on with those that the turns of its episodes sampled. Pure: records in,
//! counts out.

use grpo_records::EndedEpisode;
use grpo_records::batch::Row;
use std::collections::BTreeMap;

/// A token: its episode, its row in the episode, its position in the row.
type Place<'a> = (&'a str, u32, usize);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    pub sampled: usize,
    pub trained: usize,
    pub trained_not_sampled: usize,
    pub sampled_not_trained: usize,
}

impl Tokens {
    /// `episodes`: those of an iteration, by their names. `rows`: the rows of its batch, with their ids.
    pub fn of(episodes: &BTreeMap<String, EndedEpisode>, rows: &[Row]) -> Self {
        // How often each token was sampled, and how often it is trained on.
        let mut places: BTreeMap<Place<'_>, (usize, usize)> = BTreeMap::new();
        for (name, ended) in episodes {
            for turn in &ended.record.turns {
                for at in turn.prompt_length..turn.prompt_length + turn.sampled_length {
                    places.entry((name.as_str(), turn.row, at)).or_default().0 += 1;
                }
            }
        }
        for row in rows {
            for (at, _) in row.mask.iter().enumerate().filter(|(_, mask)| **mask == 1) {
                let place = (row.episode.as_str(), row.stored.row, at);
                places.entry(place).or_default().1 += 1;
            }
        }
        let mut tokens = Self::default();
        for (sampled, trained) in places.into_values() {
            tokens.sampled += sampled;
            tokens.trained += trained;
            tokens.trained_not_sampled += trained.saturating_sub(sampled);
            tokens.sampled_not_trained += sampled.saturating_sub(trained);
        }
        tokens
    }
}

#[cfg(test)]
mod tests;
