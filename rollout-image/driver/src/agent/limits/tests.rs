use super::*;

fn limits(context_tokens: usize, episode_tokens: Option<usize>) -> AgentLimits {
    AgentLimits {
        turns: 1,
        command_timeout: Duration::ZERO,
        episode_timeout: Duration::ZERO,
        context_tokens,
        prompt_tokens: None,
        episode_tokens,
        output_bytes: 0,
    }
}

#[test]
fn an_answer_has_the_smaller_of_what_context_and_episode_have_left() {
    assert_eq!(limits(100, None).room(60, 1000), 40);
    assert_eq!(limits(100, Some(50)).room(60, 20), 30);
    assert_eq!(limits(100, Some(50)).room(95, 20), 5);
    assert_eq!(limits(100, Some(50)).room(101, 51), 0);
}

#[test]
fn an_episode_is_full_by_the_limit_that_leaves_no_room() {
    assert_eq!(limits(100, None).full(99, 1000), None);
    assert_eq!(limits(100, None).full(100, 0), Some(EpisodeEnd::ContextFull));
    assert_eq!(limits(100, Some(50)).full(60, 49), None);
    assert_eq!(limits(100, Some(50)).full(60, 50), Some(EpisodeEnd::TokenLimit));
    assert_eq!(limits(100, Some(50)).full(100, 50), Some(EpisodeEnd::ContextFull));
}
