//! Checks that scores follow from the judge's votes, and rewards from verdicts, costs of the episodes, and scores.

use super::{Check, VerifyError};
use grpo_records::folder::{EpisodeFolder, RunFolder};
use grpo_records::judged::{score_of, vote_of};
use grpo_records::reward::Ended;
use grpo_records::{
    EpisodeRecord, EpisodeScope, JudgedTurn, ProcessRule, ProcessScores, RewardAnswer, RewardRule, TurnScore, paths,
};

/// Checks every episode with a verdict; scores only if its run has a judge, which evaluations do not use.
pub fn check(folder: &RunFolder, episodes: &[EpisodeFolder]) -> Result<Vec<Check>, VerifyError> {
    let mut votes = Check::new("scores of turns follow from what the judge said");
    let mut rewards = Check::new("rewards follow from verdicts and scores");
    for episode in episodes {
        let meta = &episode.meta;
        let trained_on = matches!(meta.key.scope, EpisodeScope::Iteration { .. });
        if !meta.outcome.is_verdict() {
            continue;
        }
        let worth = match folder.reward_rule(&meta.run) {
            Some(rule) => {
                let worth = worth(folder, episode, &rule)?;
                let recorded = meta.process.as_ref().map(|scores| scores.outcome).or(meta.reward);
                rewards.expect(worth == recorded, || {
                    format!(
                        "{} is worth {recorded:?}; by its verdict and what it took {worth:?}",
                        episode.path
                    )
                });
                worth
            }
            None => None,
        };
        let Some(rule) = folder.row_rule(&meta.run).process.filter(|_| trained_on) else {
            rewards.expect(worth.is_none() || meta.process.is_none(), || {
                format!("{} has scores, and its run has no judge", episode.path)
            });
            continue;
        };
        let Some(scores) = &meta.process else {
            rewards.expect(false, || format!("{} has a verdict and no scores", episode.path));
            continue;
        };
        for one in &scores.turns {
            let judged: Option<JudgedTurn> = folder.json_if_there(&paths::judged(&episode.path, one.turn))?;
            let wrong = match &judged {
                None => Some("the votes are not there".to_owned()),
                Some(judged) => wrong(judged, one, &rule),
            };
            votes.expect(wrong.is_none(), || {
                format!("{}, turn {}: {}", episode.path, one.turn, wrong.unwrap_or_default())
            });
        }
        rewards.expect(reward_follows(scores, meta.reward, &rule), || {
            format!("{} has reward {:?} of {scores:?}", episode.path, meta.reward)
        });
    }
    Ok(vec![votes, rewards])
}

/// The reward of the verdict; in a run that asks a reward service, the service's answer to the same verdict. Only a
/// shaped reward needs more than the verdict's record.
fn worth(folder: &RunFolder, episode: &EpisodeFolder, rule: &RewardRule) -> Result<Option<f32>, VerifyError> {
    let meta = &episode.meta;
    let (mut turns, mut patch) = (Vec::new(), Vec::new());
    if rule.shaping.is_some() {
        let record: Option<EpisodeRecord> = folder.json_if_there(&paths::trajectory(&episode.path))?;
        turns = record.map(|record| record.turns).unwrap_or_default();
        patch = folder.patch(&episode.path).unwrap_or_default();
    }
    let by_rule = rule.reward(Ended {
        outcome: &meta.outcome,
        grade: meta.grade.as_ref(),
        turns: &turns,
        patch: &patch,
    });
    if !rule.asks {
        return Ok(by_rule);
    }
    let answer: Option<RewardAnswer> = folder.json_if_there(&paths::reward(&episode.path))?;
    Ok(answer
        .zip(by_rule)
        .and_then(|(answer, by_rule)| rule.answered(&answer, by_rule)))
}

fn wrong(judged: &JudgedTurn, claimed: &TurnScore, rule: &ProcessRule) -> Option<String> {
    let misread = judged.votes.iter().find(|vote| {
        let is_whole = vote.lost.is_none() && vote.refused.is_none() && !vote.cut;
        let read = vote_of(&vote.text).filter(|_| is_whole);
        read != vote.vote
    });
    if let Some(vote) = misread {
        return Some(format!("a vote counts as {:?}, which its text does not say", vote.vote));
    }
    let score = score_of(&judged.votes, rule.min_votes);
    (score != judged.score || score != claimed.score).then(|| {
        format!(
            "its votes come to {score:?}, recorded are {:?} and {:?}",
            judged.score, claimed.score
        )
    })
}

fn reward_follows(scores: &ProcessScores, reward: Option<f32>, rule: &ProcessRule) -> bool {
    reward == Some(scores.reward(rule.coefficient))
}

#[cfg(test)]
mod tests {
    use super::*;
    use grpo_records::{SCHEMA, Vote, Writer};

    const RULE: ProcessRule = ProcessRule {
        coefficient: 0.5,
        min_votes: 1,
        step_wise: false,
    };

    fn judged(votes: &[(&str, Option<i8>)], score: Option<f32>) -> JudgedTurn {
        let vote = |(text, vote): &(&str, Option<i8>)| Vote {
            text: (*text).into(),
            vote: *vote,
            ..Vote::default()
        };
        JudgedTurn {
            schema: SCHEMA,
            writer: Writer::driver(1),
            episode: "a__g0__i0".into(),
            turn: 0,
            prompt_sha256: String::new(),
            votes: votes.iter().map(vote).collect(),
            score,
            at: 0,
        }
    }

    #[test]
    fn a_score_that_the_votes_do_not_come_to_and_a_vote_that_the_text_does_not_say_are_found() {
        let says = [("\\boxed{1}", Some(1)), ("\\boxed{-1}", Some(-1)), ("?", None)];
        let claim = |score| TurnScore { turn: 0, score };
        assert_eq!(wrong(&judged(&says, Some(0.0)), &claim(Some(0.0)), &RULE), None);
        assert!(wrong(&judged(&says, Some(1.0)), &claim(Some(1.0)), &RULE).is_some());
        assert!(wrong(&judged(&says, Some(0.0)), &claim(None), &RULE).is_some());
        let misread = [("\\boxed{-1}", Some(1))];
        assert!(wrong(&judged(&misread, Some(1.0)), &claim(Some(1.0)), &RULE).is_some());
        let mut cut = judged(&[("\\boxed{1}", Some(1))], Some(1.0));
        cut.votes[0].cut = true;
        assert!(wrong(&cut, &claim(Some(1.0)), &RULE).is_some());
        let zero = [("?", Some(0))];
        assert!(wrong(&judged(&zero, Some(0.0)), &claim(Some(0.0)), &RULE).is_some());
    }

    #[test]
    fn a_reward_is_the_verdicts_and_the_weighed_mean_of_the_scores() {
        let scores = ProcessScores {
            outcome: 1.0,
            turns: vec![TurnScore {
                turn: 0,
                score: Some(-1.0),
            }],
        };
        assert!(reward_follows(&scores, Some(0.5), &RULE));
        assert!(!reward_follows(&scores, Some(1.0), &RULE));
        assert!(!reward_follows(&scores, None, &RULE));
    }
}
