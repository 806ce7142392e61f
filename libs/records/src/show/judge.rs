//! The judge's score and votes for a turn, as text.

use super::block::block;
use crate::{JudgedTurn, Vote, VoteEnd};
use std::fmt::Write;

/// One line; with `words` also the judge's whole text.
pub(super) fn votes(out: &mut String, judged: &JudgedTurn, words: bool) {
    let score = match judged.score {
        Some(score) => format!("score {score:.3}"),
        None => "no score".to_owned(),
    };
    let each: Vec<String> = judged.votes.iter().map(vote).collect();
    let _ = writeln!(out, "--- judge: {score}; votes {}", each.join(", "));
    if !words {
        return;
    }
    for (number, one) in judged.votes.iter().enumerate() {
        let why = one.lost.as_ref().or(one.refused.as_ref());
        let title = format!("vote {number}: {} in {} ms", vote(one), one.millis);
        block(out, &title, why.unwrap_or(&one.text));
    }
}

fn vote(vote: &Vote) -> String {
    match (vote.end(), vote.vote) {
        (VoteEnd::Counted, Some(number)) => format!("{number:+}"),
        (VoteEnd::Counted | VoteEnd::Unreadable, _) if vote.cut => "cut off".to_owned(),
        (VoteEnd::Counted | VoteEnd::Unreadable, _) => "unreadable".to_owned(),
        (VoteEnd::Lost, _) => "lost".to_owned(),
        (VoteEnd::Refused, _) => "refused".to_owned(),
    }
}
