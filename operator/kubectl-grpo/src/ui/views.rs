//! Makes the views of one scope, group or episode from records. Pure.

use super::flags;
use super::index::{Index, instance_of};
use super::shown::{text, visible};
use super::tokens::Vocabulary;
use super::wire::{
    CallView, Divergence, EpisodeDetail, EpisodeLine, GradeView, GroupLine, GroupView, MessageView, ProcessView,
    RewardPart, RowLine, SampleView, ScopeView, Text, TokensView, TrainerTokens, TurnView, VoteView,
};
use grpo_records::look::worth::Worth;
use grpo_records::look::{Episode, EpisodeView};
use grpo_records::{
    AgentProcess, EpisodeKey, EpisodeMeta, EpisodeScope, GradeRecord, JudgedTurn, Outcome, TurnAction, TurnRecord,
    Vote, paths,
};
use std::collections::{BTreeMap, BTreeSet};

/// At most so much of one text is sent, in bytes. The page stays fast; the whole text is in the store.
const LONGEST: usize = 128 << 10;
/// The same for a text in a group, where several episodes are beside each other.
const LONGEST_OF_GROUP: usize = 8 << 10;

/// The groups of an iteration or evaluation. `episodes`: in the order of their names. `advantages`: by an episode's
/// folder. `cut`: there are more episodes.
pub fn scope(
    index: &Index,
    of: &EpisodeScope,
    episodes: &[Episode],
    advantages: &BTreeMap<String, f64>,
    cut: bool,
) -> ScopeView {
    let folder = paths::scope(of);
    let mut groups: BTreeMap<(u32, String), Vec<EpisodeLine>> = BTreeMap::new();
    for mut line in episodes.iter().map(line) {
        line.advantage = advantages.get(&line.path).copied();
        groups
            .entry((line.group, line.instance.clone()))
            .or_default()
            .push(line);
    }
    let dropped = index.dropped(of);
    let groups: Vec<GroupLine> = groups
        .into_iter()
        .map(|((group, instance), mut episodes)| {
            episodes.sort_by_key(|line| (line.sample, line.attempt));
            count_equal_patches(&mut episodes);
            let rewards: Vec<f64> = episodes.iter().filter_map(|line| line.reward).collect();
            let mean = (!rewards.is_empty()).then(|| rewards.iter().sum::<f64>() / rewards.len() as f64);
            let deviation = |mean: f64| {
                let squares = rewards.iter().map(|reward| (reward - mean).powi(2)).sum::<f64>();
                (squares / rewards.len() as f64).sqrt()
            };
            GroupLine {
                group,
                instance,
                reward_mean: mean,
                reward_std: mean.map(deviation),
                dropped: dropped.get(&group).cloned(),
                episodes,
            }
        })
        .collect();
    ScopeView {
        title: of.to_string(),
        voids: index.voids_of(&folder),
        scope: folder,
        groups,
        cut,
    }
}

fn count_equal_patches(episodes: &mut [EpisodeLine]) {
    let mut same: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for line in episodes.iter().filter(|line| line.patch_bytes > 0) {
        same.entry(line.patch_sha256.clone()).or_default().insert(line.sample);
    }
    for line in episodes.iter_mut().filter(|line| line.patch_bytes > 0) {
        let samples = same.get(&line.patch_sha256).map_or(1, BTreeSet::len);
        line.same_patch = samples.saturating_sub(1) as u32;
    }
}

/// An episode in a table.
pub fn line(episode: &Episode) -> EpisodeLine {
    let name = episode.name().to_owned();
    let Some(meta) = &episode.meta else {
        return EpisodeLine {
            path: episode.path.clone(),
            instance: instance_of(&name).to_owned(),
            group: EpisodeKey::group_of(&name).unwrap_or(0),
            sample: number_of(&name, 'i').unwrap_or(0),
            attempt: number_of(&name, 't').unwrap_or(1),
            name,
            outcome: "Unfinished".to_owned(),
            ..EpisodeLine::default()
        };
    };
    line_of(&episode.path, name, meta)
}

fn line_of(path: &str, name: String, meta: &EpisodeMeta) -> EpisodeLine {
    let (outcome, void_reason) = match &meta.outcome {
        Outcome::Void { reason } => ("Void".to_owned(), Some(format!("{reason:?}"))),
        verdict => (verdict.to_string(), None),
    };
    EpisodeLine {
        path: path.to_owned(),
        name,
        instance: meta.key.instance.clone(),
        group: meta.key.group,
        sample: meta.key.sample,
        attempt: meta.attempt,
        outcome,
        void_reason,
        message: meta.message.as_deref().map(visible),
        reward: meta.reward.map(f64::from),
        advantage: None,
        end: format!("{:?}", meta.end),
        turns: meta.turns,
        tokens: meta.tokens as u64,
        sampled_tokens: meta.sampled_tokens as u64,
        format_errors: meta.format_errors,
        truncated: meta.truncated,
        weights: meta.weights.clone(),
        untrainable: meta.untrainable,
        patch_bytes: meta.patch_bytes as u64,
        patch_sha256: meta.patch_sha256.clone().unwrap_or_default(),
        same_patch: 0,
        reused_from: meta.grade.as_ref().and_then(|grade| grade.reused_from.clone()),
        waited_millis: meta.waited_millis,
        agent_millis: meta.agent_millis,
        grade_millis: meta.grade_millis,
        at: meta.at,
    }
}

/// A number in an episode's name: `i3` of `<instance>__g0__i3__t2`, or `t2`.
fn number_of(name: &str, letter: char) -> Option<u32> {
    let mut parts = name.rsplit("__").take(2);
    parts.find_map(|part| part.strip_prefix(letter)?.parse().ok())
}

/// A turn. `judged`: the votes on turns of its episode. `most`: the bytes of a text.
pub fn turn(record: &TurnRecord, judged: &[JudgedTurn], most: usize) -> TurnView {
    let (result, failed) = result(record);
    let votes = judged.iter().find(|judged| judged.turn == record.turn);
    let request = record.request.as_ref();
    TurnView {
        turn: record.turn,
        row: record.row,
        branch: request
            .and_then(|request| request.branch)
            .map(|branch| format!("{branch:?}")),
        omitted_turns: record
            .omitted
            .map(|omitted| (omitted.from, omitted.to.saturating_sub(1))),
        opening: record
            .opening
            .iter()
            .map(|message| MessageView {
                role: message.role.clone(),
                content: text(&message.content, most),
            })
            .collect(),
        text: text(&record.text, most),
        action: record.action.kind.clone(),
        command: record.action.as_command().map(|command| text(command, most)),
        calls: record
            .action
            .as_calls()
            .unwrap_or_default()
            .into_iter()
            .map(|call| CallView {
                id: call.id,
                name: call.name,
                arguments: text(&call.arguments, most),
            })
            .collect(),
        result,
        failed,
        observation: text(&record.observation_text, most),
        weights: record.weights.clone(),
        prompt_tokens: record.prompt_length as u64,
        sampled_tokens: record.sampled_length as u32,
        observation_tokens: record.observation_length as u32,
        logprob: record.logprobs.iter().map(|logprob| f64::from(*logprob)).sum(),
        sample_millis: record.sample_millis,
        exec_millis: record.exec_millis,
        waited_millis: record.waited_millis,
        end: record.end.map(|end| format!("{end:?}")),
        votes: votes
            .into_iter()
            .flat_map(|judged| &judged.votes)
            .map(|vote| VoteView {
                vote: vote.vote,
                text: text(&vote.text, most),
                missing: why_missing(vote),
            })
            .collect(),
        score: votes.and_then(|judged| judged.score).map(f64::from),
        overruled: request
            .into_iter()
            .flat_map(|request| &request.overruled)
            .map(|overruled| format!("{} = {}", overruled.field, overruled.value))
            .collect(),
        injected: request.map_or(0, |request| request.injected),
        at: record.at,
    }
}

/// Why an answer of the judge is no vote.
fn why_missing(vote: &Vote) -> Option<String> {
    let of_text = || match (vote.vote, vote.cut) {
        (Some(_), _) => None,
        (None, true) => Some("cut off at the limit of tokens, or by a filter".to_owned()),
        (None, false) => Some("its text has no verdict".to_owned()),
    };
    vote.lost.clone().or_else(|| vote.refused.clone()).or_else(of_text)
}

/// What became of a turn's action, and whether it failed.
fn result(turn: &TurnRecord) -> (String, bool) {
    let seconds = |millis: u64| match millis {
        0..1000 => format!("{millis} ms"),
        _ => format!("{:.1} s", millis as f64 / 1000.0),
    };
    match (&turn.exec, turn.action.kind.as_str()) {
        (Some(exec), _) => {
            let took = seconds(exec.duration_millis);
            match (exec.exit_code, exec.timed_out, &exec.killed, exec.signal) {
                (_, true, ..) => (format!("timed out after {took}"), true),
                (_, _, Some(killed), _) => (format!("killed ({killed}) after {took}"), true),
                (Some(code), ..) => (format!("exit {code} in {took}"), code != 0),
                (None, .., Some(signal)) => (format!("signal {signal} after {took}"), true),
                (None, ..) => (format!("ended after {took}"), true),
            }
        }
        (None, TurnAction::FORMAT_ERROR) => {
            let blocks = turn.action.blocks().unwrap_or_default();
            (format!("{blocks} actions in place of one: nothing was run"), true)
        }
        (None, TurnAction::TRUNCATED) => ("the answer was cut: nothing was run".to_owned(), true),
        (None, TurnAction::MALFORMED_CALL) => {
            let why = turn.action.malformed().unwrap_or_default();
            (format!("a call that cannot be read: {why}"), true)
        }
        (None, _) => (String::new(), false),
    }
}

/// One episode.
pub fn episode(view: &EpisodeView, line: EpisodeLine, turns: &[TurnRecord], judged: &[JudgedTurn]) -> EpisodeDetail {
    let meta = view.episode.meta.as_ref();
    let patch = view.patch.as_deref().unwrap_or_default();
    let scope = paths::parse_episode(&view.episode.path).map(|(scope, _)| paths::scope(&scope));
    EpisodeDetail {
        flags: flags::flags(turns, patch, line.same_patch),
        episode: line,
        scope: scope.unwrap_or_default(),
        image: view.told.as_ref().map(|told| told.image.clone()),
        turns: turns.iter().map(|record| turn(record, judged, LONGEST)).collect(),
        rows: rows(turns),
        patch: view.patch.as_deref().map(|patch| {
            let shown = text(patch, LONGEST);
            Text {
                omitted: shown.omitted + view.patch_omitted,
                ..shown
            }
        }),
        grade: meta.and_then(|meta| meta.grade.as_ref()).map(grade),
        reward: match (&view.worth, meta) {
            (Some(worth), Some(meta)) => reward(worth, meta),
            _ => Vec::new(),
        },
        process: view.told.as_ref().and_then(|told| told.process.as_ref()).map(process),
    }
}

fn process(process: &AgentProcess) -> ProcessView {
    let end = match (process.exit_code, process.signal, &process.killed) {
        (_, _, Some(killed)) => format!("killed ({killed})"),
        (Some(code), ..) => format!("exit {code}"),
        (None, Some(signal), _) => format!("signal {signal}"),
        (None, None, None) => "ended".to_owned(),
    };
    let log = text(&process.log, LONGEST);
    ProcessView {
        end,
        log: Text {
            omitted: log.omitted + process.omitted_bytes,
            ..log
        },
        replays: process.replays,
    }
}

fn grade(grade: &GradeRecord) -> GradeView {
    let counts = |counts: grpo_records::episode::TestCounts| (counts.passed, counts.failed);
    GradeView {
        status: grade.status.clone(),
        tries: grade.tries,
        reused_from: grade.reused_from.clone(),
        fail_to_pass: counts(grade.fail_to_pass),
        pass_to_pass: counts(grade.pass_to_pass),
        notes: grade.notes.iter().map(|note| visible(note)).collect(),
    }
}

/// The summands of a reward, in the order of the rule.
fn reward(worth: &Worth, meta: &EpisodeMeta) -> Vec<RewardPart> {
    let part = |name: String, value: f64| RewardPart { name, value };
    let mut parts = vec![part(format!("verdict {}", meta.outcome), worth.parts.verdict)];
    if let Some(shaped) = &worth.parts.shaped {
        parts.push(part("passing tests".to_owned(), shaped.tests));
        parts.push(part(format!("{} turns", shaped.turns.count), -shaped.turns.cost));
        for (name, charge) in &shaped.calls {
            parts.push(part(format!("{} calls of {name}", charge.count), -charge.cost));
        }
        let lines = shaped.patch_lines;
        parts.push(part(format!("{} lines of the patch", lines.count), -lines.cost));
    }
    if let Some(answer) = &worth.answer {
        let before = worth.parts.by_rule();
        parts.push(part("reward service".to_owned(), f64::from(answer.reward) - before));
    }
    if let (Some(rule), Some(scores)) = (&worth.process, &meta.process) {
        let whole = f64::from(scores.reward(rule.coefficient));
        parts.push(part("judge of turns".to_owned(), whole - f64::from(scores.outcome)));
    }
    parts
}

fn rows(turns: &[TurnRecord]) -> Vec<RowLine> {
    let mut rows: BTreeMap<u32, RowLine> = BTreeMap::new();
    for turn in turns {
        let row = rows.entry(turn.row).or_default();
        row.row = turn.row;
        row.turns.push(turn.turn);
        row.tokens = (turn.prompt_length + turn.sampled_length + turn.observation_length) as u64;
        row.sampled += turn.sampled_length as u64;
    }
    rows.into_values().collect()
}

/// The samples of a group beside each other. `samples`: each episode with its turns and their ids, in order.
pub fn group(
    of: &EpisodeScope,
    group: &GroupLine,
    samples: Vec<(EpisodeLine, Vec<TurnRecord>)>,
    vocabulary: Option<&Vocabulary>,
) -> GroupView {
    // An attempt that was given up may have no turns: nothing can be compared with it.
    let is_base = |(line, turns): &&(EpisodeLine, Vec<TurnRecord>)| line.reward.is_some() && !turns.is_empty();
    let base = samples
        .iter()
        .find(is_base)
        .or_else(|| samples.iter().find(|(_, turns)| !turns.is_empty()));
    let first = base.map(|(_, turns)| turns.clone()).unwrap_or_default();
    let compared_with = base.map(|(line, _)| line.path.clone());
    let samples = samples.into_iter().map(|(episode, turns)| SampleView {
        episode,
        diverges: divergence(&first, &turns, vocabulary).map(|found| within(found, &turns)),
        turns: turns.iter().map(|record| turn(record, &[], LONGEST_OF_GROUP)).collect(),
    });
    GroupView {
        scope: paths::scope(of),
        group: group.group,
        instance: group.instance.clone(),
        compared_with,
        samples: samples.collect(),
    }
}

/// A place that is not in the shown part of its text cannot be marked.
fn within(found: Divergence, turns: &[TurnRecord]) -> Divergence {
    let text = turns
        .iter()
        .find(|turn| turn.turn == found.turn)
        .map(|turn| turn.text.as_str());
    let shown = text.map_or(0, |whole| text_of_group(whole).encode_utf16().count());
    Divergence {
        offset: found.offset.filter(|offset| (*offset as usize) < shown),
        ..found
    }
}

fn text_of_group(whole: &str) -> String {
    text(whole, LONGEST_OF_GROUP).text
}

/// The first sampled token of `turns` that differs from those of `first`.
pub fn divergence(first: &[TurnRecord], turns: &[TurnRecord], vocabulary: Option<&Vocabulary>) -> Option<Divergence> {
    for (at, turn) in turns.iter().enumerate() {
        let theirs = first.get(at).map_or(&[][..], |turn| &turn.sampled);
        let same = turn.sampled.iter().zip(theirs).take_while(|(a, b)| a == b).count();
        if same == turn.sampled.len() && same == theirs.len() {
            continue;
        }
        // At the end of the shorter answer, it is the token that the other one has.
        let before = vocabulary.map(|vocabulary| vocabulary.texts(&turn.sampled[..same]).concat());
        let offset = before.filter(|before| turn.text.starts_with(before.as_str()));
        return Some(Divergence {
            turn: turn.turn,
            token: same as u32,
            offset: offset.map(|before| before.encode_utf16().count() as u32),
        });
    }
    None
}

/// The sampled tokens of a turn. `trainer`: from the statistics of its step, or why they cannot be read.
pub fn tokens(
    record: &TurnRecord,
    vocabulary: Option<&Vocabulary>,
    trainer: Result<Option<TrainerTokens>, String>,
) -> TokensView {
    let texts = vocabulary
        .map(|vocabulary| vocabulary.texts(&record.sampled))
        .unwrap_or_default();
    TokensView {
        turn: record.turn,
        weights: record.weights.clone(),
        has_text: vocabulary.is_some(),
        texts: texts.iter().map(|text| visible(text)).collect(),
        ids: record.sampled.clone(),
        logprobs: record.logprobs.clone(),
        problem: trainer.as_ref().err().cloned(),
        trainer: trainer.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
