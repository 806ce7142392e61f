use super::*;
use grpo_records::RequestRecord;
use serde_json::json;

const OBSERVED: usize = 1500;

fn turn(number: usize, observation: String) -> TurnRecord {
    serde_json::from_value(json!({
        "schema": grpo_records::SCHEMA, "writer": {"role": "Driver", "epoch": 1}, "episode": "a__g0__i0",
        "turn": number, "lease": "l", "promptLength": 1, "sampledLength": 1, "observationLength": 1, "seed": 1,
        "weights": "a-v0", "finish": "stop", "text": format!("I look at line {number}: \u{1f40d}\0\"\\."),
        "opening": [{"role": "user", "content": format!("case {number}"), "tokens": number, "note": "n"}],
        "action": {"kind": "Command", "payload": {"command": "ls"}}, "observationText": observation,
        "sampleMillis": 0, "execMillis": 0, "waitedMillis": 0, "at": 1,
    }))
    .unwrap()
}

/// Lines of a program, no two the same.
fn lines(number: usize) -> String {
    let lines = (0..).map(|line| format!("    def test_{}(self): return {line}\n", number * 7919 + line));
    let mut text = String::new();
    for line in lines {
        if text.len() >= OBSERVED {
            break;
        }
        text.push_str(&line);
    }
    text
}

fn request() -> RequestRecord {
    serde_json::from_value(json!({
        "api": "Messages", "key": "k", "tools": "t", "messages": "m", "answered": "a",
    }))
    .unwrap()
}

#[test]
fn the_turns_of_an_episode_hold_less_than_a_block_of_texts_and_all_texts_come_back() {
    let (mut packed, mut turns, mut all) = (PackedTexts::default(), Vec::new(), Vec::new());
    for number in 0..100 {
        let turn = turn(number, lines(number));
        all.push(turn.clone());
        turns.push(turn);
        packed.pack(&mut turns);
        assert!(turns.iter().map(bytes_of).sum::<usize>() < BLOCK, "turn {number}");
        let mut whole = turns.clone();
        packed.put_back(&mut whole).unwrap();
        assert_eq!(whole, all, "turn {number}");
    }
    let held: usize = packed.blocks.iter().map(|block| block.frame.len()).sum();
    let texts: usize = all.iter().map(bytes_of).sum();
    assert!(held < texts / 3, "{held} bytes for texts of {texts}");
}

#[test]
fn a_text_larger_than_a_block_is_packed_at_once() {
    let mut packed = PackedTexts::default();
    let long = turn(0, "x".repeat(5 * BLOCK));
    let mut turns = vec![long.clone()];
    packed.pack(&mut turns);
    assert_eq!(turns[0].observation_text, "");
    packed.put_back(&mut turns).unwrap();
    assert_eq!(turns, [long]);
}

#[test]
fn the_answer_to_a_command_line_agent_keeps_its_text_for_replays() {
    let mut packed = PackedTexts::default();
    let mut asked = turn(0, "x".repeat(BLOCK));
    asked.request = Some(request());
    let mut turns = vec![asked.clone()];
    packed.pack(&mut turns);
    assert!(!packed.is_empty());
    assert_eq!(turns[0].text, asked.text);
    assert!(turns[0].opening.is_empty());
    packed.put_back(&mut turns).unwrap();
    assert_eq!(turns, [asked]);
}

#[test]
fn a_damaged_block_is_an_error_and_no_other_text() {
    let mut packed = PackedTexts::default();
    let mut turns = vec![turn(0, "x".repeat(BLOCK))];
    packed.pack(&mut turns);
    packed.blocks[0].frame[0] ^= 1;
    assert!(packed.put_back(&mut turns).is_err());
}
