//! Tests which turns are left out, and that an assembled history is what the template renders.

use super::*;
use grpo_chat_template::{ChatMessage, Role};
use grpo_records::{SCHEMA, fixture};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::Path;
use tokenizers::Tokenizer;

fn trim(head: f64, tail: f64) -> Trim {
    Trim { head, tail }
}

fn gap(from: u32, to: u32) -> Option<Omitted> {
    Some(Omitted { from, to })
}

/// Costs; fixed, marker, room; head, tail; and the turns left out.
type Case<'a> = (&'a [usize], [usize; 3], (f64, f64), Option<Omitted>);

#[test]
fn turns_are_kept_from_both_ends_within_their_shares() {
    let cases: [Case; 8] = [
        // It fits.
        (&[10, 10, 10], [20, 5, 50], (0.3, 0.7), None),
        // 75 of 100: 22 for the head, 53 for the tail.
        (&[10, 10, 30, 30, 20], [20, 5, 100], (0.3, 0.7), gap(2, 3)),
        // The first turn that does not fit ends the head, even if smaller ones follow.
        (&[30, 1, 40, 30, 20], [20, 5, 100], (0.3, 0.7), gap(0, 3)),
        // Defect 14: the newest turn stays, even if the tail has no room for it.
        (&[10, 10, 60], [20, 5, 95], (0.3, 0.7), gap(1, 2)),
        // It stays even if it alone is too large, and the head leaves for it.
        (&[10, 10, 10, 90], [20, 5, 100], (0.3, 0.7), gap(0, 3)),
        // Nothing else can be left out.
        (&[90], [20, 5, 100], (0.3, 0.7), None),
        // Slack behind head and tail.
        (&[10, 10, 10, 10, 10, 10, 10], [0, 0, 60], (0.2, 0.4), gap(1, 5)),
        (&[10, 10, 10, 10, 10, 10, 10], [0, 0, 60], (0.0, 0.0), gap(0, 6)),
    ];
    for (costs, [fixed, marker, room], (head, tail), wanted) in cases {
        let found = omit(costs, fixed, marker, room, &trim(head, tail), None);
        assert_eq!(found, wanted, "{costs:?} of {room}");
    }
}

#[test]
fn what_was_left_out_stays_left_out_and_the_tail_moves_only_when_it_is_full() {
    let (fixed, marker, room, trim) = (10, 2, 100, trim(0.3, 0.4));
    let (mut costs, mut before, mut cuts) = (vec![], None, 0);
    for turn in 0..200 {
        costs.push(5 + turn % 7);
        let now = omit(&costs, fixed, marker, room, &trim, before);
        if let (Some(before), Some(now)) = (before, now) {
            assert_eq!(before.from, now.from);
            assert!(before.to <= now.to);
        }
        assert!(length(&costs, fixed, marker, now) <= room);
        cuts += usize::from(now != before);
        before = now;
    }
    // Each cut makes room for several turns: the tail has 40 of 88 tokens then, a turn about 8.
    assert!((20..70).contains(&cuts), "{cuts} cuts of 200 turns");
}

/// The algorithm of swe-rl as described, without a gap before: head and tail are filled greedily, all of the room for
/// them.
fn of_swe_rl(costs: &[usize], fixed: usize, marker: usize, room: usize) -> Option<(usize, usize)> {
    if costs.len() <= 1 || fixed + costs.iter().sum::<usize>() <= room {
        return None;
    }
    if room <= fixed + marker {
        return Some((0, costs.len()));
    }
    let available = room - fixed - marker;
    let mut head_left = (available as f64 * 0.3) as usize;
    let mut tail_left = available - head_left;
    let mut head = 0;
    while head < costs.len() && costs[head] <= head_left {
        head_left -= costs[head];
        head += 1;
    }
    let mut tail = costs.len();
    while tail > head && costs[tail - 1] <= tail_left {
        tail_left -= costs[tail - 1];
        tail -= 1;
    }
    (head < tail).then_some((head, tail))
}

/// A model that reasons, whose template shows earlier answers without their reasoning, as Qwen3's does. `opens`: the
/// text that its template adds to the opening of an answer.
fn reasoning_model(opens: &str) -> (ChatTemplate, Tokenizer) {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/model");
    let dir = tempfile::tempdir().unwrap();
    let read = |file: &str| -> Value { serde_json::from_slice(&std::fs::read(model.join(file)).unwrap()).unwrap() };
    let mut tokenizer = read("tokenizer.json");
    for (id, content) in [(1024, "<think>"), (1025, "</think>")] {
        let token = json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": false});
        tokenizer["added_tokens"].as_array_mut().unwrap().push(token);
    }
    let mut config = read("tokenizer_config.json");
    config["chat_template"] = Value::String(format!(
        "{{% for m in messages %}}{{{{ '<|im_start|>' + m.role + '\n' }}}}{{% if m.role == 'assistant' %}}\
         {{{{ m.content.split('</think>')[-1].lstrip('\n') }}}}{{% else %}}{{{{ m.content }}}}{{% endif %}}\
         {{{{ '<|im_end|>\n' }}}}{{% endfor %}}{{% if add_generation_prompt %}}\
         {{{{ '<|im_start|>assistant\n{opens}' }}}}{{% endif %}}"
    ));
    for (file, content) in [("tokenizer.json", &tokenizer), ("tokenizer_config.json", &config)] {
        std::fs::write(dir.path().join(file), content.to_string()).unwrap();
    }
    std::fs::copy(
        model.join("generation_config.json"),
        dir.path().join("generation_config.json"),
    )
    .unwrap();
    let tokenizer = Tokenizer::from_file(dir.path().join("tokenizer.json")).unwrap();
    (ChatTemplate::load(dir.path()).unwrap(), tokenizer)
}

/// Assembles turns as the loop does; each history must be what the template renders of the same messages.
#[test]
fn a_history_of_ids_is_what_the_template_renders_of_its_messages() {
    for opens in ["", "<think>\\n"] {
        let (template, tokenizer) = reasoning_model(opens);
        let shape = PromptShape::default();
        let rule = HistoryRule {
            trim: Some(trim(0.3, 0.5)),
            strip: true,
        };
        rule.rehearse(&template, &shape).unwrap();
        let stop = template.stop_ids()[0];
        let opening = [
            ChatMessage::new(Role::System, "Mend it."),
            ChatMessage::new(Role::User, "It is broken."),
        ];
        let mut trajectory = Trajectory::default();
        let mut said: Vec<[ChatMessage; 2]> = Vec::new();
        let mut records: Vec<String> = Vec::new();
        let (mut trimmed, mut before) = (0, None);
        for number in 0..24 {
            let seen = rule.seen(&template, &shape, &trajectory, 500).unwrap();
            let prompt = match &seen.anew {
                Some(ids) => ids.clone(),
                None => template.prompt(&shape, &opening).unwrap(),
            };
            let gap = seen.omitted.unwrap_or(Omitted { from: 0, to: 0 });
            let mut messages = opening.to_vec();
            for (at, turn) in (0..).zip(&said) {
                if at == gap.from && gap.to > 0 {
                    messages.push(ChatMessage::new(Role::User, marker((gap.to - gap.from) as usize)));
                }
                if !(gap.from..gap.to).contains(&at) {
                    messages.extend(turn.clone());
                }
            }
            assert_eq!(prompt, template.prompt(&shape, &messages).unwrap(), "turn {number}");
            assert!(prompt.len() <= 500);
            trimmed += usize::from(seen.omitted != before);
            before = seen.omitted;

            let reasoning = if number % 3 == 1 { "" } else { "I think.\n</think>\n\n" };
            let answer = format!(
                "{reasoning}Run it {number} times.\n```bash\nls {}\n```",
                "a ".repeat(number % 5)
            );
            let observed = format!("it says {}", "no ".repeat(7 * number % 11));
            let mut sampled = tokenizer.encode(answer.as_str(), false).unwrap().get_ids().to_vec();
            sampled.push(stop);
            let user = ChatMessage::new(Role::User, observed);
            let observation = template.glue(&shape, Some(stop), std::slice::from_ref(&user)).unwrap();
            let new = NewTurn {
                prompt_length: prompt.len(),
                sampled: &sampled,
                observation: observation.len(),
                omitted: seen.omitted,
            };
            let length = rule.length_after(&template, &shape, &trajectory, new, 500).unwrap();
            let known = trajectory.rows.last().map_or(&[][..], |row| &row.tokens);
            let (row, added) = match prompt.strip_prefix(known) {
                Some(more) if number > 0 => (trajectory.rows.len() - 1, more.to_vec()),
                _ => (trajectory.rows.len(), prompt.clone()),
            };
            let turn = TurnRecord {
                schema: SCHEMA,
                turn: number as u32,
                row: row as u32,
                omitted: seen.omitted,
                prompt_length: prompt.len(),
                prompt: added,
                logprobs: vec![-0.5; sampled.len()],
                sampled,
                observation,
                end: None,
                experts: None,
                ..fixture::look_turn()
            };
            records.push(serde_json::to_string(&turn).unwrap());
            trajectory.push(&turn).unwrap();
            said.push([ChatMessage::new(Role::Assistant, answer), user]);
            let next = rule.seen(&template, &shape, &trajectory, 500).unwrap();
            let next = next.anew.map_or(length, |ids| ids.len());
            // A marker of fewer turns may be shorter.
            assert!((next..next + 3).contains(&length), "{length} for {next}");
        }
        assert!(trimmed > 3, "{trimmed}");
        // The ids of a repeated history do not count as grown.
        let own: usize = trajectory
            .turns
            .iter()
            .map(|turn| turn.sampled_length + turn.observation_length)
            .sum();
        assert_eq!(trajectory.grown(), own);
        // A restarted driver has the same history.
        let mut read = Trajectory::default();
        for record in &records {
            let record: TurnRecord = serde_json::from_str(record).unwrap();
            read.push(&record).unwrap();
        }
        assert_eq!(read.rows, trajectory.rows);
        let seen = |trajectory| rule.seen(&template, &shape, trajectory, 500).unwrap();
        assert_eq!(seen(&read), seen(&trajectory));
    }
}

#[test]
fn a_model_whose_reasoning_cannot_be_found_is_refused() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/model");
    let template = ChatTemplate::load(&model).unwrap();
    let rule = HistoryRule {
        trim: None,
        strip: true,
    };
    let refused = rule
        .rehearse(&template, &PromptShape::default())
        .unwrap_err()
        .to_string();
    assert!(refused.contains("without a token </think>"), "{refused}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// The first cut leaves out the same turns, except for the newest, which always stays, and for the head that leaves
    /// for it.
    #[test]
    fn the_first_cut_is_that_of_swe_rl_but_for_the_newest_turn(
        costs in prop::collection::vec(1usize..400, 1..60),
        fixed in 1usize..600,
        marker in 10usize..30,
        room in 100usize..6000,
    ) {
        let ours = omit(&costs, fixed, marker, room, &trim(0.3, 0.7), None);
        let theirs = of_swe_rl(&costs, fixed, marker, room);
        let newest = costs.len() - 1;
        match (ours, theirs) {
            (None, None) => {}
            (Some(ours), Some((from, to))) if to <= newest => {
                prop_assert_eq!((ours.from as usize, ours.to as usize), (from, to));
            }
            (Some(ours), Some((from, _))) => {
                // They dropped the newest turn too (defect 14).
                prop_assert!(ours.from as usize <= from);
                prop_assert_eq!(ours.to as usize, newest);
            }
            // Only the newest turn was left to drop.
            (None, Some((from, to))) => prop_assert_eq!((from.min(newest), to), (newest, costs.len())),
            (Some(_), None) => prop_assert!(false, "they left nothing out, we {:?}", ours),
        }
    }

    /// The newest turn always stays, and the history fits unless none that is shorter exists.
    #[test]
    fn a_history_fits_or_is_as_short_as_can_be(
        costs in prop::collection::vec(1usize..400, 1..40),
        fixed in 1usize..600,
        room in 1usize..4000,
        head in 0.0f64..1.0,
        rest in 0.0f64..1.0,
        at in prop::collection::vec(1usize..40, 0..4),
    ) {
        let (marker, trim) = (20, trim(head, (1.0 - head) * rest));
        let mut before = None;
        let mut turns: Vec<usize> = at.into_iter().filter(|turns| *turns < costs.len()).collect();
        turns.push(costs.len());
        turns.sort_unstable();
        for turns in turns {
            let costs = &costs[..turns];
            let now = omit(costs, fixed, marker, room, &trim, before);
            prop_assert!(now.is_none_or(|gap| gap.from < gap.to && (gap.to as usize) < costs.len()));
            let shortest = gap(0, costs.len() as u32 - 1).filter(|gap| gap.to > 0);
            let fits = |gap| length(costs, fixed, marker, gap) <= room;
            prop_assert!(fits(now) || !fits(shortest), "{now:?} of {costs:?}");
            before = now;
        }
    }
}
