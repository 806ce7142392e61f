use super::*;

#[test]
fn the_same_tokens_after_another_block_are_another_place() {
    let mut cache = PrefixCache::new(8);
    let tokens = [5; BLOCK_LEN];
    let (first, _) = cache.share((0, tokens), Arc::new(Block::default()));
    let (second, _) = cache.share((first, tokens), Arc::new(Block::default()));
    assert_ne!(first, second);
    assert_eq!(cache.find(&(0, tokens)).unwrap().0, first);
    assert_eq!(cache.share((0, tokens), Arc::new(Block::default())).0, first);
}

#[test]
fn what_was_not_used_for_longest_goes_first_and_the_size_is_bounded() {
    let mut cache = PrefixCache::new(2);
    for token in 0..2 {
        cache.share((0, [token; BLOCK_LEN]), Arc::new(Block::default()));
    }
    cache.find(&(0, [0; BLOCK_LEN]));
    cache.share((0, [2; BLOCK_LEN]), Arc::new(Block::default()));
    assert!(cache.find(&(0, [0; BLOCK_LEN])).is_some());
    assert!(cache.find(&(0, [1; BLOCK_LEN])).is_none());
    assert_eq!(cache.entries.len(), cache.by_age.len());
}
