//! Checks that every episode consists of exactly the tokens of its turns, and that the actions follow from the sampled
//! ids.
//!
//! The ids are stored once. So turns must cover their rows without gap or overlap, and mask, logprobs, versions and
//! experts must be at the positions that the turns give.

use super::{Check, VerifyError, calls, histories};
use grpo_records::folder::{EpisodeFolder, FolderError, RunFolder};
use grpo_records::store::sha256_hex;
use grpo_records::{EndedEpisode, EpisodeEnd, ExpertsSpan, RunAgent, TokenRow, TurnAction, TurnRecord};
use tokenizers::Tokenizer;

/// The row that its turns add up to.
#[derive(Debug, Default, PartialEq)]
pub struct Sequence {
    pub tokens: Vec<u32>,
    pub mask: Vec<u8>,
    pub logprobs: Vec<f32>,
    /// The version that sampled each token; empty for a token that no engine sampled.
    pub versions: Vec<String>,
    /// The experts of the tokens, if recorded.
    pub experts: Vec<ExpertsSpan>,
    pub turns: Vec<u32>,
    /// Turns whose prompt does not follow from the preceding tokens.
    pub misplaced: Vec<u32>,
}

impl Sequence {
    /// Builds a row from the turns of its episode.
    pub fn of(turns: &[TurnRecord], row: usize) -> Self {
        let mut all = Self::default();
        for turn in turns.iter().filter(|turn| turn.row as usize == row) {
            all.turns.push(turn.turn);
            all.given(&turn.prompt);
            if turn.prompt_length != all.tokens.len() {
                all.misplaced.push(turn.turn);
            }
            all.tokens.extend(&turn.sampled);
            all.mask.extend(turn.sampled.iter().map(|_| 1));
            all.logprobs.extend(&turn.logprobs);
            all.experts.extend(turn.experts.clone());
            all.versions.extend(turn.sampled.iter().map(|_| turn.weights.clone()));
            all.given(&turn.observation);
        }
        all
    }

    fn given(&mut self, ids: &[u32]) {
        self.tokens.extend(ids);
        self.mask.extend(ids.iter().map(|_| 0));
        self.logprobs.extend(ids.iter().map(|_| 0.0));
        self.versions.extend(ids.iter().map(|_| String::new()));
    }

    /// How the row differs from the turns, if it does.
    pub fn differs_from(&self, row: &TokenRow) -> Option<String> {
        if !self.misplaced.is_empty() {
            return Some(format!(
                "the prompt of turns {:?} is not what stands before them",
                self.misplaced
            ));
        }
        if self.tokens != row.tokens {
            return Some(format!(
                "turns have {} tokens, the row {}, and they differ",
                self.tokens.len(),
                row.tokens.len()
            ));
        }
        if self.turns != row.turns {
            return Some(format!(
                "it is of turns {:?}, says the row of turns {:?}",
                self.turns, row.turns
            ));
        }
        if self.mask != row.mask {
            return Some("mask differs from what was sampled".into());
        }
        if self.logprobs != row.logprobs {
            return Some("logprobs differ from the turns'".into());
        }
        if self.experts != row.experts {
            return Some("experts differ from the turns'".into());
        }
        let unlike = self
            .versions
            .iter()
            .enumerate()
            .filter(|(_, v)| !v.is_empty())
            .find(|(at, version)| {
                !row.weights
                    .iter()
                    .any(|span| (span.from..span.to).contains(at) && span.version == **version)
            });
        unlike.map(|(at, version)| format!("token {at} was sampled by {version}, the row says otherwise"))
    }
}

pub fn check(folder: &RunFolder, episodes: &[EpisodeFolder]) -> Result<Vec<Check>, VerifyError> {
    let tokenizer = folder.tokenizer()?.map(|file| open(file.path())).transpose()?;
    let mut tokens = Check::new("episodes are the token ids of their turns");
    let mut texts = Check::new("answers are their sampled ids, decoded");
    let mut actions = Check::new("actions follow from the answers");
    let mut made_anew = Check::new("histories are made of the turns before them");
    let mut experts = Check::new("experts are in the files that turns name");
    for episode in episodes {
        let ended = match folder.ended(&episode.path) {
            Err(FolderError::NotWhole { source, .. }) => {
                tokens.expect(false, || format!("{}: {source}", episode.path));
                continue;
            }
            ended => ended?,
        };
        let Some(ended) = ended else {
            tokens.passed_over += 1;
            tokens.expect(!episode.meta.outcome.is_verdict(), || {
                format!("{} has a verdict and no trajectory", episode.path)
            });
            continue;
        };
        let turns = match ended.turns() {
            Ok(turns) => turns,
            Err(error) => {
                tokens.expect(false, || format!("{}: {error}", episode.path));
                continue;
            }
        };
        let agent = folder.agent(&ended.record.run);
        let differs = differs(&ended, &turns)
            .or_else(|| misplaced(episode))
            .or_else(|| ended_otherwise(episode, &turns, &agent));
        tokens.expect(differs.is_none(), || {
            format!("{}: {}", episode.path, differs.unwrap_or_default())
        });
        for span in ended.rows.iter().flat_map(|row| &row.experts) {
            let file = folder.bytes(&span.file);
            experts.expect(file.is_ok_and(|bytes| sha256_hex(&bytes) == span.sha256), || {
                format!("{}: {} is not what was recorded", episode.path, span.file)
            });
        }
        if !matches!(agent, RunAgent::Cli { .. }) {
            histories::check(&turns, &episode.path, &mut made_anew);
        }
        for turn in &turns {
            let place = || format!("{}, turn {}", episode.path, turn.turn);
            if let Some(tokenizer) = &tokenizer {
                let decoded = decode(tokenizer, &turn.sampled)?;
                texts.expect(same_words(&decoded, &turn.text), || {
                    format!("{}: {decoded:?} is recorded as {:?}", place(), turn.text)
                });
            } else {
                texts.passed_over += 1;
            }
            if turn.action != TurnAction::truncated() {
                let wrong = match &agent {
                    RunAgent::Bash => Some(action_of(&turn.text))
                        .filter(|found| *found != turn.action)
                        .map(|found| format!("{found:?} is recorded as {:?}", turn.action)),
                    RunAgent::Tools { format } => calls::wrong(format, false, &turn.text, &turn.action),
                    RunAgent::Cli { format, .. } => calls::wrong(format, true, &turn.text, &turn.action),
                };
                actions.expect(wrong.is_none(), || {
                    format!("{}: {}", place(), wrong.unwrap_or_default())
                });
            }
        }
    }
    // Most runs have neither.
    let rare = [made_anew, experts].into_iter().filter(|check| check.looked_at > 0);
    Ok([tokens, texts, actions].into_iter().chain(rare).collect())
}

/// The first row that differs from its turns, and how.
fn differs(ended: &EndedEpisode, turns: &[TurnRecord]) -> Option<String> {
    let beyond = turns.iter().find(|turn| turn.row as usize >= ended.rows.len());
    let rows = ended.rows.iter().enumerate();
    let unlike = rows.filter_map(|(at, row)| Some((at, Sequence::of(turns, at).differs_from(row)?)));
    beyond
        .map(|turn| format!("turn {} is of row {}, which is not there", turn.turn, turn.row))
        .or_else(|| unlike.map(|(at, what)| format!("row {at}: {what}")).next())
}

/// A record that names another folder than its own.
fn misplaced(episode: &EpisodeFolder) -> Option<String> {
    let named = episode.meta.key.dir(episode.meta.attempt);
    (named != episode.path).then(|| format!("its meta.json is that of {named}"))
}

/// An end that differs from the last turn's. The time limit may end an episode during an answer, which is then not a
/// turn, and a server that speaks only text may refuse to answer. A command-line agent ends by itself, or at a request
/// without an answer: only an end that an answer causes is in a turn.
fn ended_otherwise(episode: &EpisodeFolder, turns: &[TurnRecord], agent: &RunAgent) -> Option<String> {
    let (last, recorded) = (turns.last()?.end, episode.meta.end);
    let refused = [EpisodeEnd::ContextFull, EpisodeEnd::AnswerCut].contains(&recorded) && episode.meta.untrainable;
    let in_an_answer = last.is_none() && (recorded == EpisodeEnd::EpisodeTimeout || refused);
    let in_no_answer = matches!(agent, RunAgent::Cli { .. })
        && last.is_none()
        && ![EpisodeEnd::MalformedCall, EpisodeEnd::AnswerCut, EpisodeEnd::Aborted].contains(&recorded);
    let differs = episode.meta.outcome.is_verdict() && last != Some(recorded) && !in_an_answer && !in_no_answer;
    differs.then(|| format!("ended with {last:?} by its turns, {recorded:?} by meta.json"))
}

fn open(path: &std::path::Path) -> Result<Tokenizer, VerifyError> {
    Tokenizer::from_file(path).map_err(|e| VerifyError::Tokenizer {
        path: path.to_owned(),
        what: e.to_string(),
    })
}

fn decode(tokenizer: &Tokenizer, ids: &[u32]) -> Result<String, VerifyError> {
    tokenizer.decode(ids, true).map_err(|e| VerifyError::Tokenizer {
        path: "tokenizer.json".into(),
        what: format!("decoding {} ids: {e}", ids.len()),
    })
}

/// The stop token may be in the record or not; the rest must be equal.
fn same_words(decoded: &str, recorded: &str) -> bool {
    decoded == recorded || decoded == recorded.replace("<|im_end|>", "").replace("<|endoftext|>", "")
}

/// Exactly one closed bash block is a command. A second parser, on purpose: it checks the driver's own.
/// Blocks in the reasoning are drafts; a `</think>` within a line of a block is part of a command.
fn action_of(answer: &str) -> TurnAction {
    let opened = answer.trim_start().strip_prefix("<think>");
    let in_a_block = |thought: &str| {
        let line = thought.rsplit('\n').next().unwrap_or_default();
        let begins_it = line.trim_matches([' ', '\t']).is_empty() && thought.contains('\n');
        !begins_it && thought.matches("```").count() % 2 == 1
    };
    let said = match (opened, answer.split_once("</think>")) {
        (Some(opened), _) => opened.split_once("</think>").map_or("", |(_, rest)| rest),
        (None, Some((thought, rest))) if !thought.contains("<tool_call>") && !in_a_block(thought) => rest,
        _ => answer,
    };
    // A block may open after other text on its line, also after the fence that closes another.
    let opens = |text: &str| {
        text.rsplit_once("```bash")
            .is_some_and(|(_, after)| after.trim().is_empty())
    };
    let mut commands = Vec::new();
    let mut open: Option<Vec<&str>> = None;
    for line in said.split('\n') {
        match &mut open {
            None => open = opens(line).then(Vec::new),
            // A closing line ends a block only after at least one line of commands.
            Some(body) if line.starts_with("```") && !body.is_empty() => {
                commands.push(body.join("\n"));
                open = opens(&line["```".len()..]).then(Vec::new);
            }
            Some(body) => body.push(line),
        }
    }
    match (commands.len(), commands.pop()) {
        (1, Some(command)) => TurnAction::command(command),
        (blocks, _) => TurnAction::format_error(blocks as u32),
    }
}

#[cfg(test)]
mod tests;
