use super::*;
use grpo_records::fixture::turn;

fn row() -> TokenRow {
    let meta = grpo_records::fixture::episode("a", 0, grpo_records::Outcome::Resolved).meta;
    grpo_records::fixture::ended(&meta, &two_turns()).rows.remove(0)
}

fn sequence() -> Sequence {
    Sequence::of(&two_turns(), 0)
}

fn two_turns() -> [TurnRecord; 2] {
    let mut second = turn(1, "sh t", "1 passed");
    second.prompt_length = 6;
    [turn(0, "ls", "a"), second]
}

#[test]
fn turns_add_up_to_their_row() {
    let sequence = sequence();
    assert_eq!(sequence.tokens, [1, 2, 3, 10, 2, 20, 11, 2, 21]);
    assert_eq!(sequence.mask, [0, 0, 0, 1, 1, 0, 1, 1, 0]);
    assert_eq!(sequence.differs_from(&row()), None);
}

#[test]
fn a_token_that_nobody_sampled_is_found() {
    let changes: [fn(&mut TokenRow); 5] = [
        |row| row.tokens[4] = 7,
        |row| row.tokens.push(7),
        |row| row.mask[5] = 1,
        |row| row.logprobs[5] = -1.0,
        |row| row.turns.push(2),
    ];
    for change in changes {
        let mut forged = row();
        change(&mut forged);
        assert!(sequence().differs_from(&forged).is_some(), "{forged:?}");
    }
}

#[test]
fn tokens_credited_to_other_weights_are_found() {
    let mut forged = row();
    forged.weights[0].version = "a-v1".into();
    assert!(sequence().differs_from(&forged).is_some());
}

#[test]
fn a_turn_that_saw_another_prompt_is_found() {
    let mut turns = two_turns();
    turns[1].prompt_length = 5;
    assert_eq!(Sequence::of(&turns, 0).misplaced, [1]);
}

#[test]
fn actions_are_read_as_the_agent_is_described() {
    let command = |c: &str| TurnAction::command(c);
    assert_eq!(action_of("Look.\n```bash\nls\n```"), command("ls"));
    assert_eq!(action_of("```bash\nls"), TurnAction::format_error(0));
    let two = "```bash\na\n```\n```bash\nb\n```";
    assert_eq!(action_of("```bash\n```"), TurnAction::format_error(0));
    assert_eq!(action_of(two), TurnAction::format_error(2));
    let on_one_line = "```bash\na\n``` ```bash\nb\n```";
    assert_eq!(action_of(on_one_line), TurnAction::format_error(2));
    let thought = "<think>\n```bash\nrm a\n```\n</think>\n";
    assert_eq!(action_of(&format!("{thought}\n```bash\nls\n```")), command("ls"));
    assert_eq!(action_of(thought), TurnAction::format_error(0));
    let unclosed = "```bash\nrm a\n</think>\n```bash\nls\n```";
    assert_eq!(action_of(unclosed), command("ls"));
    let search = "```bash\ngrep '</think>' a\n```";
    assert_eq!(action_of(search), command("grep '</think>' a"));
}
