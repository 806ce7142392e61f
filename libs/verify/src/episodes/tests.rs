use super::*;
use grpo_records::fixture::turn;
use grpo_records::{EpisodeEnd, WeightsSpan, Writer};

fn record(sequence: &Sequence) -> EpisodeRecord {
    let episode = grpo_records::fixture::episode("a", 0, grpo_records::Outcome::Resolved);
    EpisodeRecord {
        schema: grpo_records::SCHEMA,
        writer: Writer::driver(1),
        run: "uid".into(),
        key: episode.meta.key,
        attempt: 1,
        task: 0,
        image: "i".into(),
        end: EpisodeEnd::Submitted,
        turns: 2,
        messages: Vec::new(),
        temperature: 1.0,
        top_p: 1.0,
        top_k: -1,
        prompt_length: 3,
        tokens: sequence.tokens.clone(),
        mask: sequence.mask.clone(),
        logprobs: sequence.logprobs.clone(),
        weights: vec![WeightsSpan {
            from: 3,
            to: sequence.tokens.len(),
            version: "a-v0".into(),
        }],
        experts: Vec::new(),
        truncated: false,
        started_at: 0,
        finished_at: 1,
    }
}

fn two_turns() -> [TurnRecord; 2] {
    let mut second = turn(1, "sh t", "1 passed");
    second.prompt_length = 6;
    [turn(0, "ls", "a"), second]
}

#[test]
fn turns_add_up_to_the_episode() {
    let sequence = Sequence::of(&two_turns());
    assert_eq!(sequence.tokens, [1, 2, 3, 10, 2, 20, 11, 2, 21]);
    assert_eq!(sequence.mask, [0, 0, 0, 1, 1, 0, 1, 1, 0]);
    assert_eq!(sequence.differs_from(&record(&sequence)), None);
}

#[test]
fn a_token_that_nobody_sampled_is_found() {
    let sequence = Sequence::of(&two_turns());
    let mut forged = record(&sequence);
    forged.tokens[4] = 7;
    assert!(sequence.differs_from(&forged).is_some());
    let mut forged = record(&sequence);
    forged.mask[5] = 1;
    assert!(sequence.differs_from(&forged).is_some());
}

#[test]
fn tokens_credited_to_other_weights_are_found() {
    let sequence = Sequence::of(&two_turns());
    let mut forged = record(&sequence);
    forged.weights[0].version = "a-v1".into();
    assert!(sequence.differs_from(&forged).is_some());
}

#[test]
fn a_turn_that_saw_another_prompt_is_found() {
    let mut turns = two_turns();
    turns[1].prompt_length = 5;
    assert_eq!(Sequence::of(&turns).misplaced, [1]);
}

#[test]
fn actions_are_read_as_the_agent_is_described() {
    let command = |c: &str| TurnAction::command(c);
    assert_eq!(action_of("Look.\n```bash\nls\n```"), command("ls"));
    assert_eq!(action_of("```bash\nls"), TurnAction::format_error(0));
    let two = "```bash\na\n```\n```bash\nb\n```";
    assert_eq!(action_of("```bash\n```"), TurnAction::format_error(0));
    assert_eq!(action_of(two), TurnAction::format_error(2));
}
