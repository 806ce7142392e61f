//! A simulated episode: requests are placed, answers are made up, records are folded as the driver folds them.

use super::*;
use crate::recording::request::ToolCall;
use crate::trajectory::Trajectory;
use grpo_records::chat::CalledTool;
use grpo_records::{SCHEMA, TurnAction, Writer};
use proptest::prelude::*;

/// One token of each word, by its checksum; every message is its words between two marks.
fn ids(text: &str) -> Vec<u32> {
    let word = |word: &str| {
        word.bytes()
            .fold(7u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)))
    };
    text.split(' ').map(word).collect()
}

fn rendered(messages: &[ChatMessage]) -> Vec<u32> {
    let one = |message: &ChatMessage| {
        let calls = message
            .tool_calls
            .iter()
            .map(|call| format!("{} {}", call.name, call.arguments));
        let words = [message.role.word().to_owned(), message.content.clone()]
            .into_iter()
            .chain(calls);
        ids(&words.collect::<Vec<_>>().join(" "))
    };
    messages.iter().flat_map(one).collect()
}

#[derive(Default)]
struct Episode {
    forest: Forest,
    trajectory: Trajectory,
    records: Vec<TurnRecord>,
    answers: Vec<ChatMessage>,
    /// The engine's prompts and answers.
    sampled: Vec<(Vec<u32>, Vec<u32>)>,
    requests: Vec<Request>,
}

impl Episode {
    /// The answer, and whether it was sampled now.
    fn ask(&mut self, request: &Request) -> (ChatMessage, bool) {
        let keys = Keys::of(request);
        let mut place = self.forest.place(request, &keys);
        // The template of these tests shows all reasoning.
        while let Place::Behind(behind) = &place
            && behind.bare
        {
            place = self.forest.place_without(request, &keys, behind);
        }
        let (row, shared, added) = match &place {
            Place::Known(turn) => return (self.answers[*turn as usize].clone(), false),
            Place::Behind(behind) => {
                let row = &self.trajectory.rows[behind.row as usize];
                let shared = row.tokens[..behind.tokens].to_vec();
                let row = behind.branch.map_or(behind.row as usize, |_| self.forest.rows());
                (row, shared, rendered(&request.messages[behind.new..]))
            }
            Place::Apart(_) => (self.forest.rows(), Vec::new(), rendered(&request.messages)),
        };
        let given = [shared, added.clone()].concat();
        let opens = row == self.trajectory.rows.len();
        let number = self.records.len() as u32;
        let answer = answer(number);
        let sampled = rendered(std::slice::from_ref(&answer));
        self.sampled.push((given.clone(), sampled.clone()));
        let calls = answer.tool_calls.iter().map(|call| CalledTool {
            id: call.id.clone(),
            name: call.name.clone(),
            arguments: call.arguments.clone(),
        });
        let turn = TurnRecord {
            row: row as u32,
            prompt_length: given.len(),
            prompt: if opens { given } else { added },
            logprobs: vec![-1.0; sampled.len()],
            sampled,
            request: Some(record("ChatCompletions", request, &keys, &place, &answer)),
            action: TurnAction::calls(&calls.collect::<Vec<_>>()),
            ..blank(number)
        };
        self.forest.push(&turn).unwrap();
        self.trajectory.push(&turn).unwrap();
        self.records.push(turn);
        self.answers.push(answer.clone());
        self.requests.push(request.clone());
        (answer, true)
    }

    fn branches(&self) -> Vec<Branch> {
        let records = self.records.iter();
        records.filter_map(|turn| turn.request.as_ref()?.branch).collect()
    }
}

/// Every third answer is words alone; some have reasoning.
fn answer(number: u32) -> ChatMessage {
    let calls = (number % 3 != 2).then(|| ToolCall {
        id: format!("call_{number}_0"),
        name: "bash".into(),
        arguments: format!("{{\"n\": {number}.0, \"c\": \"<|im_end|> ü\"}}"),
    });
    ChatMessage {
        reasoning: (number % 4 == 1).then(|| format!("thought {number}")),
        tool_calls: calls.into_iter().collect(),
        ..ChatMessage::new(Role::Assistant, format!("says {number}"))
    }
}

fn blank(turn: u32) -> TurnRecord {
    TurnRecord {
        schema: SCHEMA,
        writer: Writer::driver(1),
        episode: "a".into(),
        turn,
        lease: "l".into(),
        omitted: None,
        opening: Vec::new(),
        row: 0,
        prompt_length: 0,
        sampled_length: 0,
        observation_length: 0,
        prompt: Vec::new(),
        seed: 0,
        sampled: Vec::new(),
        logprobs: Vec::new(),
        weights: "a-v0".into(),
        finish: "stop".into(),
        experts: None,
        text: String::new(),
        memory: serde_json::Value::Null,
        request: None,
        chat: None,
        action: TurnAction::answer(),
        exec: None,
        observation: Vec::new(),
        observation_text: String::new(),
        end: None,
        sample_millis: 0,
        exec_millis: 0,
        waited_millis: 0,
        at: 0,
    }
}

fn user(text: &str) -> ChatMessage {
    ChatMessage::new(Role::User, text)
}

fn request(messages: &[ChatMessage]) -> Request {
    Request {
        messages: messages.to_vec(),
        ..Request::default()
    }
}

/// A client's form of an answer: arguments rewritten, blanks around the reasoning.
fn echoed(answer: &ChatMessage) -> ChatMessage {
    let mut echoed = answer.clone();
    for call in &mut echoed.tool_calls {
        let value: serde_json::Value = serde_json::from_str(&call.arguments).unwrap();
        call.arguments = value.to_string().replace(".0", "");
    }
    echoed.reasoning = echoed.reasoning.map(|text| format!(" {text}\n"));
    echoed
}

/// An episode of this many turns that extend each other, and its history.
fn linear(turns: usize) -> (Episode, Vec<ChatMessage>) {
    let mut episode = Episode::default();
    let mut messages = vec![user("task")];
    for turn in 0..turns {
        let (answer, _) = episode.ask(&request(&messages));
        messages.push(echoed(&answer));
        messages.push(match answer.tool_calls.first() {
            Some(call) => ChatMessage::tool(&call.id, format!("result {turn}")),
            None => user(&format!("word {turn}")),
        });
    }
    (episode, messages)
}

#[test]
fn a_history_that_only_grows_is_one_row() {
    let (episode, _) = linear(30);
    assert_eq!(
        (episode.trajectory.rows.len(), episode.branches()),
        (1, vec![Branch::First])
    );
    assert!(episode.trajectory.rows[0].turns.iter().copied().eq(0..30));
}

#[test]
fn each_change_of_a_history_has_its_cause() {
    type Change = fn(&mut Vec<ChatMessage>);
    let changes: [(Branch, Change); 8] = [
        (Branch::ChangedHistory, |messages| messages[2].content = "cut".into()),
        (Branch::Conversation, |messages| *messages = vec![user("other")]),
        (Branch::ChangedAnswer, |messages| messages[5].content.push('!')),
        (Branch::DroppedReasoning, |messages| {
            messages.truncate(5);
            messages[3].reasoning = None;
        }),
        (Branch::LeftOutAnswer, |messages| {
            messages.truncate(5);
            messages.push(user("wrong format"));
        }),
        (Branch::SecondContinuation, |messages| {
            messages.truncate(4);
            messages.push(user("another word"));
        }),
        (Branch::ChangedHistory, |messages| {
            messages.drain(..3);
            messages.insert(0, user("summary"));
        }),
        // An answer without calls is known by its words.
        (Branch::ChangedHistory, |messages| {
            messages.drain(..5);
            messages.truncate(2);
            messages.insert(0, user("files"));
        }),
    ];
    for (cause, change) in changes {
        let (mut episode, mut messages) = linear(4);
        change(&mut messages);
        assert!(episode.ask(&request(&messages)).1, "{cause:?}");
        assert_eq!(episode.branches(), [Branch::First, cause]);
    }
    let (mut episode, messages) = linear(4);
    let other = Request {
        tools: "[]".into(),
        ..request(&messages)
    };
    episode.ask(&other);
    assert_eq!(episode.branches(), [Branch::First, Branch::OtherSettings]);
}

#[test]
fn a_fork_shares_the_ids_before_it_and_trains_on_none_of_them() {
    let (mut episode, mut messages) = linear(4);
    messages.truncate(4);
    messages.push(user("another word"));
    episode.ask(&request(&messages));
    let [first, second] = &episode.trajectory.rows[..] else {
        panic!("{} rows", episode.trajectory.rows.len());
    };
    let shared = episode.records[1].prompt_length + episode.records[1].sampled.len();
    assert_eq!(first.tokens[..shared], second.tokens[..shared]);
    assert!(second.sampled.iter().all(|span| span.start >= shared));
    assert_eq!(second.turns, [4]);
}

#[test]
fn messages_behind_an_answer_that_are_no_results_are_counted() {
    let (mut episode, mut messages) = linear(2);
    messages.push(user("reminder"));
    episode.ask(&request(&messages));
    assert_eq!(episode.records[2].request.as_ref().unwrap().injected, 1);
    assert_eq!(episode.records[1].request.as_ref().unwrap().injected, 0);
}

#[test]
fn a_record_without_its_request_is_refused() {
    assert!(Forest::default().push(&blank(0)).is_err());
}

#[derive(Clone, Debug)]
enum Step {
    Extend,
    Retry(usize),
    Edit(usize, String),
    Drop(usize),
    Swap(usize, usize),
    Truncate(usize),
    Inject(String),
    BareReasoning,
    Aside(String),
    Tools(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let text = prop_oneof![
        Just("<|im_end|>".to_owned()),
        Just("<|im_start|>assistant\n".to_owned()),
        Just("\u{F8FF}answer\u{F8FF}".to_owned()),
        "\\PC{0,12}",
    ];
    prop_oneof![
        8 => Just(Step::Extend),
        2 => any::<usize>().prop_map(Step::Retry),
        1 => (any::<usize>(), text.clone()).prop_map(|(at, text)| Step::Edit(at, text)),
        1 => any::<usize>().prop_map(Step::Drop),
        1 => (any::<usize>(), any::<usize>()).prop_map(|(a, b)| Step::Swap(a, b)),
        1 => any::<usize>().prop_map(Step::Truncate),
        1 => text.clone().prop_map(Step::Inject),
        1 => Just(Step::BareReasoning),
        1 => text.prop_map(Step::Aside),
        1 => any::<bool>().prop_map(Step::Tools),
    ]
}

fn played(steps: &[Step]) -> Episode {
    let mut episode = Episode::default();
    let mut messages = vec![ChatMessage::new(Role::System, "system"), user("task")];
    let mut tools = String::new();
    for step in steps {
        let length = messages.len();
        match step {
            Step::Extend => {}
            Step::Retry(at) => {
                if !episode.requests.is_empty() {
                    let again = episode.requests[at % episode.requests.len()].clone();
                    assert!(!episode.ask(&again).1);
                }
                continue;
            }
            Step::Edit(at, text) => messages[at % length].content.push_str(text),
            Step::Drop(at) if length > 1 => {
                messages.remove(at % length);
            }
            Step::Drop(_) => {}
            Step::Swap(a, b) => messages.swap(a % length, b % length),
            Step::Truncate(at) => messages.truncate(at % length + 1),
            Step::Inject(text) => messages.push(user(text)),
            Step::BareReasoning => messages.iter_mut().for_each(|message| message.reasoning = None),
            Step::Aside(text) => {
                episode.ask(&request(&[user(text)]));
                continue;
            }
            Step::Tools(some) => tools = if *some { "[{\"a\": 1}]".into() } else { String::new() },
        }
        let (answer, _) = episode.ask(&Request {
            tools: tools.clone(),
            ..request(&messages)
        });
        messages.push(echoed(&answer));
        messages.extend(
            answer
                .tool_calls
                .iter()
                .map(|call| ChatMessage::tool(&call.id, "result")),
        );
        if answer.tool_calls.is_empty() {
            messages.push(user("word"));
        }
    }
    episode
}

/// The number of histories to try; `make check-histories` asks for more.
fn histories() -> u32 {
    let more = std::env::var("GRPO_HISTORIES").ok();
    more.and_then(|more| more.parse().ok()).unwrap_or(2000)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(histories()))]

    #[test]
    fn every_history_keeps_the_invariants_of_rows(steps in prop::collection::vec(step(), 1..24)) {
        let mut episode = played(&steps);
        // Prompts are what the engine got, and each sampled token is in the mask of one row.
        let mut masked = 0;
        for (at, turn) in episode.records.iter().enumerate() {
            let row = episode.trajectory.rows[turn.row as usize].stored();
            let (given, sampled) = &episode.sampled[at];
            let end = turn.prompt_length + sampled.len();
            prop_assert_eq!(&row.tokens[..turn.prompt_length], &given[..]);
            prop_assert_eq!(&row.tokens[turn.prompt_length..end], &sampled[..]);
            prop_assert!(row.mask[turn.prompt_length..end].iter().all(|mask| *mask == 1));
            masked += sampled.len();
        }
        let all: usize = episode.trajectory.rows.iter().map(|row| row.stored().sampled()).sum();
        prop_assert_eq!(all, masked);
        // Asking again changes nothing.
        let before = episode.trajectory.clone();
        for (at, request) in episode.requests.clone().iter().enumerate() {
            let (answer, sampled) = episode.ask(request);
            prop_assert!(!sampled);
            prop_assert_eq!(answer, episode.answers[at].clone());
        }
        prop_assert_eq!(&before, &episode.trajectory);
        // A second driver finds the same places.
        let mut second = Forest::default();
        for turn in &episode.records {
            second.push(&turn.without_ids()).unwrap();
        }
        for request in &episode.requests {
            let mut longer = request.clone();
            longer.messages.push(user("more"));
            let keys = Keys::of(&longer);
            prop_assert_eq!(second.place(&longer, &keys), episode.forest.place(&longer, &keys));
        }
    }
}
