//! Compares this crate with verl 0.9.1 and TRL 1.16.0 on random cases.
//!
//! `tests/peers.jsonl` was recorded with `make check-objective`, which makes new cases with the peers' own functions
//! and runs this test on all of them (`GRPO_PEER_CASES`). [`Difference`] and [`Adjusted`] list the permitted
//! differences, with reasons.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use grpo_crds::algorithm::{Aggregation, Algorithm, KlEstimator, Ratio};
use grpo_objective::advantage::{GroupAdvantages, advantages, batch_deviation};
use grpo_objective::ratio::MAX_LOG_RATIO;
use grpo_objective::{Sequence, Token, kl, objective};
use serde::Deserialize;

/// Relative to the larger of 1 and the peer's number.
const NEAR: f64 = 1e-6;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Case {
    peer: Peer,
    what: What,
    algorithm: Algorithm,
    /// Rewards; `None` is a void.
    #[serde(default)]
    groups: Vec<Vec<Option<f64>>>,
    #[serde(default)]
    advantages: Vec<Vec<f64>>,
    #[serde(default)]
    sequences: Vec<Row>,
    /// `None`: not a number.
    loss: Option<f64>,
    /// By the logprob of each trained token.
    #[serde(default)]
    gradient: Vec<Vec<f64>>,
    reward: Option<f64>,
    shaped: Option<f64>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Peer {
    Verl,
    Trl,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum What {
    Advantages,
    Reward,
    Loss,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    #[serde(default)]
    advantage: f64,
    /// new, old, rollout, reference, entropy.
    tokens: Vec<[f64; 5]>,
    /// A limit ended it and `maskOverlong` is set.
    #[serde(default)]
    cut: bool,
}

/// Permitted differences between a peer's answer and ours: these cases are counted and not compared. Names as in
/// `docs/src/objective.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Difference {
    /// TRL bounds no log-ratio. We clamp it to 20, so that one broken logprob cannot make a loss infinite.
    TrlUnboundedRatio,
    /// verl bounds the mean log-ratio of a sequence at 10; we bound it at 20, as for a token.
    VerlSequenceBound,
    /// verl bounds each token's log-ratio at 20 before the mean of its geometric mask; we average the recorded values.
    VerlGeometricBound,
    /// verl bounds k3 at 10, where its gradient becomes 0; ours has a gradient up to the bound of the exponent.
    VerlK3Bound,
    /// With no trained token, verl divides by 0. Our loss is 0.
    VerlNothingTrained,
    /// verl gives the only episode of a group its reward as advantage. We drop the group.
    VerlGroupOfOne,
    /// TRL counts the reward of a group's only valid episode in the deviation of the batch, and has no deviation of its
    /// group. We drop the group.
    TrlGroupOfOne,
}

/// Differences that change only a factor or only the gradient: these cases are still compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Adjusted {
    /// TRL's means over sequences count those without a trained token. Ours do not, like verl's.
    TrlEmptySequences,
    /// One ratio for a sequence and a weight for each token: in the gradient, TRL gives every token the sequence's mean
    /// weight; we give it its own, like verl. The loss is the same, and only the loss is compared.
    TrlSequenceGradient,
}

impl Case {
    fn sequences(&self) -> Vec<Sequence> {
        let token = |[new, old, rollout, reference, entropy]: &[f64; 5]| Token {
            new: *new,
            old: *old,
            rollout: *rollout,
            reference: *reference,
            entropy: *entropy,
        };
        let sequence = |row: &Row| Sequence {
            advantage: row.advantage,
            tokens: if row.cut {
                Vec::new()
            } else {
                row.tokens.iter().map(token).collect()
            },
        };
        self.sequences.iter().map(sequence).collect()
    }

    fn difference(&self, sequences: &[Sequence]) -> Option<Difference> {
        match self.what {
            What::Advantages => self.of_groups(),
            What::Reward => self.of_kl(sequences, |token| token.old - token.reference),
            What::Loss => self
                .of_ratios(sequences)
                .or_else(|| self.of_kl(sequences, |token| token.new - token.reference)),
        }
    }

    fn of_groups(&self) -> Option<Difference> {
        let alone = |group: &Vec<Option<f64>>| group.iter().flatten().count() == 1;
        let found = self.groups.iter().any(alone);
        match self.peer {
            Peer::Verl => found.then_some(Difference::VerlGroupOfOne),
            Peer::Trl => found.then_some(Difference::TrlGroupOfOne),
        }
    }

    fn of_kl(&self, sequences: &[Sequence], x: fn(&Token) -> f64) -> Option<Difference> {
        let kl = self
            .algorithm
            .kl
            .as_ref()
            .filter(|kl| kl.estimator == KlEstimator::K3)?;
        let mut tokens = sequences.iter().flat_map(|sequence| &sequence.tokens);
        match self.peer {
            Peer::Verl => tokens
                .any(|token| kl::estimate(kl.estimator, x(token)).value > 10.0)
                .then_some(Difference::VerlK3Bound),
            Peer::Trl => tokens
                .any(|token| x(token).abs() > MAX_LOG_RATIO)
                .then_some(Difference::TrlUnboundedRatio),
        }
    }

    fn of_ratios(&self, sequences: &[Sequence]) -> Option<Difference> {
        let far = |difference: fn(&Token) -> f64| {
            sequences
                .iter()
                .flat_map(|sequence| &sequence.tokens)
                .any(|token| difference(token).abs() > MAX_LOG_RATIO)
        };
        let geometric = self
            .algorithm
            .correction
            .as_ref()
            .is_some_and(|correction| correction.geometric_mask.is_some());
        let by_sequence = self.algorithm.ratio == Ratio::Sequence;
        match self.peer {
            Peer::Verl if sequences.iter().all(|sequence| sequence.tokens.is_empty()) => {
                Some(Difference::VerlNothingTrained)
            }
            Peer::Verl if by_sequence && sequences.iter().any(|sequence| drift(sequence) > 10.0) => {
                Some(Difference::VerlSequenceBound)
            }
            Peer::Verl if geometric && far(|token| token.old - token.rollout) => Some(Difference::VerlGeometricBound),
            Peer::Trl if far(|token| token.new - token.old) || far(|token| token.old - token.rollout) => {
                Some(Difference::TrlUnboundedRatio)
            }
            _ => None,
        }
    }

    fn adjusted(&self, sequences: &[Sequence]) -> Option<Adjusted> {
        if self.peer == Peer::Verl || self.what != What::Loss {
            return None;
        }
        let by_token = self.algorithm.correction.as_ref().is_some_and(|correction| {
            let weighs = correction.truncated_importance.is_some() || correction.ice_pop.is_some();
            correction.level == Ratio::Token && weighs
        });
        if self.algorithm.ratio == Ratio::Sequence && by_token {
            return Some(Adjusted::TrlSequenceGradient);
        }
        let empty = sequences.iter().any(|sequence| sequence.tokens.is_empty());
        (self.is_mean_of_sequences() && empty).then_some(Adjusted::TrlEmptySequences)
    }

    fn is_mean_of_sequences(&self) -> bool {
        matches!(
            self.algorithm.aggregation,
            Aggregation::SequenceMean | Aggregation::SequenceSum
        )
    }

    /// Pairs of the peer's value and ours.
    fn pairs(&self, sequences: &[Sequence]) -> Vec<(f64, f64)> {
        match self.what {
            What::Advantages => self.pairs_of_advantages(),
            What::Reward => {
                let kl = self.algorithm.kl.as_ref().unwrap();
                let differences = sequences[0].tokens.iter().map(|token| token.old - token.reference);
                let ours = kl::shaped_reward(self.reward.unwrap(), kl, differences);
                vec![(self.shaped.unwrap(), ours)]
            }
            What::Loss => self.pairs_of_losses(sequences),
        }
    }

    fn pairs_of_advantages(&self) -> Vec<(f64, f64)> {
        let valid = |group: &Vec<Option<f64>>| group.iter().flatten().copied().collect();
        let valid: Vec<Vec<f64>> = self.groups.iter().map(valid).collect();
        let deviation = batch_deviation(valid.iter().map(Vec::as_slice));
        let mut pairs = Vec::new();
        for ((group, valid), theirs) in self.groups.iter().zip(&valid).zip(&self.advantages) {
            assert_eq!(group.len(), theirs.len());
            let ours = match advantages(valid, &self.algorithm.advantage, deviation) {
                GroupAdvantages::Dropped => vec![0.0; valid.len()],
                kept => kept.values().unwrap().to_vec(),
            };
            // We do not train on a void; TRL trains on it with advantage 0.
            let mut ours = ours.into_iter();
            for (theirs, reward) in theirs.iter().zip(group) {
                pairs.push((*theirs, reward.map_or(0.0, |_| ours.next().unwrap())));
            }
        }
        pairs
    }

    fn pairs_of_losses(&self, sequences: &[Sequence]) -> Vec<(f64, f64)> {
        let ours = objective(sequences, &self.algorithm);
        // Scales to TRL's number of sequences.
        let factor = if self.peer == Peer::Trl && self.is_mean_of_sequences() {
            let counted = sequences.iter().filter(|sequence| !sequence.tokens.is_empty()).count();
            counted as f64 / sequences.len() as f64
        } else {
            1.0
        };
        let mut pairs = vec![(self.loss.unwrap_or(f64::NAN), ours.loss * factor)];
        if self.adjusted(sequences) == Some(Adjusted::TrlSequenceGradient) {
            return pairs;
        }
        assert_eq!(self.gradient.len(), ours.gradient.len());
        for (row, (theirs, ours)) in self.sequences.iter().zip(self.gradient.iter().zip(&ours.gradient)) {
            assert_eq!(theirs.len(), row.tokens.len());
            // A row without training has no gradient; the comparison uses zeros.
            let ours = ours
                .iter()
                .map(|gradient| gradient.logprob * factor)
                .chain(std::iter::repeat(0.0));
            pairs.extend(theirs.iter().copied().zip(ours));
        }
        pairs
    }
}

/// Mean log-ratio of the sequence.
fn drift(sequence: &Sequence) -> f64 {
    let sum: f64 = sequence.tokens.iter().map(|token| token.new - token.old).sum();
    sum / sequence.tokens.len().max(1) as f64
}

fn cases() -> (String, bool) {
    match std::env::var("GRPO_PEER_CASES") {
        Ok(path) => (
            std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}")),
            true,
        ),
        Err(_) => (include_str!("peers.jsonl").to_owned(), false),
    }
}

#[test]
fn verl_and_trl_answer_the_same() {
    let (text, all) = cases();
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let (mut compared, mut wrong, mut worst) = (0u32, Vec::new(), 0.0f64);
    for (at, line) in text.lines().enumerate() {
        let case: Case = serde_json::from_str(line).unwrap_or_else(|e| panic!("line {}: {e}", at + 1));
        let sequences = case.sequences();
        if let Some(difference) = case.difference(&sequences) {
            *counts
                .entry(format!("not compared, permitted: {difference:?}"))
                .or_default() += 1;
            continue;
        }
        compared += 1;
        *counts.entry(format!("{:?} {:?}", case.peer, case.what)).or_default() += 1;
        if let Some(adjusted) = case.adjusted(&sequences) {
            *counts.entry(format!("of them adjusted: {adjusted:?}")).or_default() += 1;
        }
        let apart = |(theirs, ours): (f64, f64)| (theirs - ours).abs() / theirs.abs().max(1.0);
        let pairs = case.pairs(&sequences);
        // NaN is never near.
        let far = |pair: &(f64, f64)| apart(*pair).is_nan() || apart(*pair) > NEAR;
        match pairs.iter().copied().find(far) {
            Some((theirs, ours)) => wrong.push(format!("line {}: theirs {theirs:e}, ours {ours:e}: {line}", at + 1)),
            None => worst = pairs.iter().copied().map(apart).fold(worst, f64::max),
        }
    }
    for (what, count) in &counts {
        println!("{count:>6} {what}");
    }
    println!(
        "{compared:>6} compared, {} differ, the others by at most {worst:.1e}",
        wrong.len()
    );
    assert!(
        wrong.is_empty(),
        "{} of {compared} differ, the first of them:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(3)].join("\n")
    );
    let least = if all { 10_000 } else { 200 };
    assert!(compared >= least, "only {compared} cases were compared");
    for what in [
        "Verl Advantages",
        "Verl Reward",
        "Verl Loss",
        "Trl Advantages",
        "Trl Loss",
    ] {
        assert!(counts.contains_key(what), "no case of {what}");
    }
}

#[test]
fn every_permitted_difference_is_in_the_book() {
    use Difference::*;
    let page = include_str!("../../../docs/src/objective.md");
    let differences = [
        TrlUnboundedRatio,
        VerlSequenceBound,
        VerlGeometricBound,
        VerlK3Bound,
        VerlNothingTrained,
        VerlGroupOfOne,
        TrlGroupOfOne,
    ]
    .map(|one| format!("{one:?}"));
    let adjusted = [Adjusted::TrlEmptySequences, Adjusted::TrlSequenceGradient].map(|one| format!("{one:?}"));
    for name in differences.iter().chain(&adjusted) {
        assert!(
            page.contains(&format!("`{name}`")),
            "docs/src/objective.md does not name {name}"
        );
    }
}
