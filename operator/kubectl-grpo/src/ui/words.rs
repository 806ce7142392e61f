//! Full-text search over episodes: which words occur in which of them.
//!
//! Words are runs of letters, digits and `_`, in lower case. The index grows episode by episode, and a search is an
//! intersection of sorted lists, so it stays fast with 100,000 episodes.

use std::collections::{BTreeSet, HashMap};

/// Longer words are hashes and encoded data.
const LONGEST: usize = 40;
/// Words with more digits are numbers, hashes and addresses: outputs have millions of them, and no search is for them.
const MOST_DIGITS: usize = 8;
/// At most so many bytes. Later episodes are then found by their names only.
const MOST: usize = 2 << 30;
/// About what a word takes beside its text: its places in the two tables.
const OF_A_WORD: usize = 120;

/// The words of the episodes that were added.
#[derive(Debug, Default)]
pub struct Words {
    numbers: HashMap<Box<str>, u32>,
    /// For each word the episodes that contain it, ascending.
    places: Vec<Vec<u32>>,
    bytes: usize,
    read: usize,
    /// The first episode whose texts are read; `None` until somebody searches.
    first: Option<usize>,
}

impl Words {
    /// Begins with this episode, unless an earlier call has begun. Texts of the episodes before it are not read.
    pub fn begin_at(&mut self, first: usize) {
        self.first.get_or_insert(first);
    }

    /// The number of the episode to add next; `None` if no texts are wanted yet.
    pub fn next(&self) -> Option<usize> {
        Some(self.first? + self.read)
    }

    /// Adds the next episode: its number is greater than that of any before.
    pub fn add<'a>(&mut self, episode: u32, texts: impl IntoIterator<Item = &'a str>) {
        self.read += 1;
        if self.bytes >= MOST {
            return;
        }
        let mut words = BTreeSet::new();
        for text in texts {
            words.extend(words_of(text));
        }
        for word in words {
            self.bytes += size_of::<u32>();
            let length = word.len();
            let next = self.places.len() as u32;
            let number = *self.numbers.entry(word.into_boxed_str()).or_insert(next);
            if number == next {
                self.bytes += OF_A_WORD + length;
                self.places.push(Vec::new());
            }
            self.places[number as usize].push(episode);
        }
    }

    /// How many episodes were added.
    pub fn read(&self) -> usize {
        self.read
    }

    /// The episodes that contain every word of a query, ascending; `None` for a query without words.
    pub fn find(&self, query: &str) -> Option<Vec<u32>> {
        let words: BTreeSet<String> = words_of(query).collect();
        if words.is_empty() {
            return None;
        }
        let lists = words.iter().map(|word| {
            let number = self.numbers.get(word.as_str());
            number.map_or(&[][..], |number| &self.places[*number as usize])
        });
        let mut lists: Vec<&[u32]> = lists.collect();
        lists.sort_by_key(|list| list.len());
        let (shortest, others) = lists.split_first()?;
        let in_all = |episode: &&u32| others.iter().all(|list| list.binary_search(episode).is_ok());
        Some(shortest.iter().filter(in_all).copied().collect())
    }
}

fn words_of(text: &str) -> impl Iterator<Item = String> {
    text.split(|character: char| !(character.is_alphanumeric() || character == '_'))
        .filter(|word| (2..=LONGEST).contains(&word.len()))
        .filter(|word| word.bytes().filter(u8::is_ascii_digit).count() <= MOST_DIGITS)
        .map(str::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_episode_is_found_by_all_words_of_a_query_in_any_order_and_case() {
        let mut words = Words::default();
        words.add(0, ["The Loop is off by_one", "grep -n"]);
        words.add(3, ["a loop 123456789012"]);
        assert_eq!(words.find("loop"), Some(vec![0, 3]));
        assert_eq!(words.find("by_one LOOP"), Some(vec![0]));
        assert_eq!(words.find("loop missing"), Some(Vec::new()));
        assert_eq!(words.find(" - "), None);
        assert_eq!(words.find("123456789012"), None);
        assert_eq!(words.read(), 2);
    }

    #[test]
    fn texts_are_wanted_from_the_first_begin_on() {
        let mut words = Words::default();
        assert_eq!(words.next(), None);
        words.begin_at(7);
        words.begin_at(0);
        assert_eq!(words.next(), Some(7));
        words.add(7, ["loop"]);
        assert_eq!((words.next(), words.read()), (Some(8), 1));
    }
}
