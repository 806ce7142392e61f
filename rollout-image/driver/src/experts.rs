//! Router replay (arXiv 2510.11370): records the experts of a mixture that each token of an episode went through, so
//! that the trainer sends it through the same ones.
//!
//! With every turn the driver asks the engine for the experts that no earlier turn has brought. It checks the report
//! against the model, removes layers without experts, and writes the rest to a file of the turn, which the turn's
//! record names. [`ExpertsSpan`] describes its content.

use crate::fault::TerminalFault;
use grpo_contracts::reason::Reason;
use grpo_crds::grpo_run::{GrpoRunSpec, Mode};
use grpo_engine_protocol::{ExpertsFault, RoutedExperts};
use grpo_model::Config;
use grpo_records::ExpertsSpan;
use std::path::Path;

/// The experts of a model: what is needed to check and store their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mixture {
    pub experts: usize,
    pub per_token: usize,
    /// For every layer, whether it has experts.
    pub layers: Vec<bool>,
}

/// Why an engine's report is wrong: a defect of the engine, not of one answer.
#[derive(Debug, thiserror::Error)]
pub enum ReplayFault {
    #[error(transparent)]
    Unreadable(#[from] ExpertsFault),
    #[error(
        "it reports {found} numbers of experts for each token, the model has {layers} layers with {per_token} experts a token: does it serve another model?"
    )]
    Shape {
        found: usize,
        layers: usize,
        per_token: usize,
    },
    #[error("it reports expert {found} of {experts} for token {token} in layer {layer}: does it serve another model?")]
    Number {
        found: u16,
        experts: usize,
        token: usize,
        layer: usize,
    },
    #[error(
        "it reports the same expert twice for token {token} in layer {layer}, as where it has not recorded that layer: set algorithm.routerReplay: false, or use \
         another version of the engine"
    )]
    Twice { token: usize, layer: usize },
}

impl Mixture {
    /// The mixture whose experts a run records; `None` if the model has none or the run does not want them.
    pub fn of_run(spec: &GrpoRunSpec, model: &Path) -> Result<Option<Self>, TerminalFault> {
        let wanted = spec.algorithm.router_replay;
        if spec.mode != Mode::Train || wanted == Some(false) {
            return Ok(None);
        }
        match (Self::of_model(model), wanted) {
            (Ok(Some(mixture)), _) => Ok(Some(mixture)),
            // Dense, or of an unknown family, which the trainer does not know either.
            (_, None) => Ok(None),
            (Ok(None), _) => Err(TerminalFault::new(
                Reason::NoExperts,
                "spec.algorithm.routerReplay is true, and the model is no mixture of experts: leave it out",
            )),
            (Err(error), _) => Err(TerminalFault::new(
                Reason::ModelUnknown,
                format!("spec.algorithm.routerReplay is true, and which layers have experts cannot be read: {error}"),
            )),
        }
    }

    fn of_model(model: &Path) -> Result<Option<Self>, grpo_model::ModelError> {
        let experts = Config::read(model)?.experts;
        Ok(experts.map(|experts| Self {
            experts: experts.count,
            per_token: experts.per_token,
            layers: experts.layers,
        }))
    }

    /// The stored form: for layers with experts only, one byte for each number, or two if there are more than 256
    /// experts.
    pub fn to_keep(&self, reported: &RoutedExperts) -> Result<Vec<u8>, ReplayFault> {
        let each = self.layers.len() * self.per_token;
        if reported.per_token != each && reported.tokens > 0 {
            return Err(ReplayFault::Shape {
                found: reported.per_token,
                layers: self.layers.len(),
                per_token: self.per_token,
            });
        }
        let numbers = reported.numbers()?;
        let mut kept = Vec::with_capacity(numbers.len() * self.width());
        for (token, layers) in numbers.chunks_exact(each).enumerate() {
            let of_layers = layers.chunks_exact(self.per_token).zip(&self.layers).enumerate();
            for (layer, (chosen, _)) in of_layers.filter(|(_, (_, mixture))| **mixture) {
                self.check(chosen, reported.from + token, layer)?;
                for number in chosen {
                    kept.extend_from_slice(&number.to_le_bytes()[..self.width()]);
                }
            }
        }
        Ok(kept)
    }

    /// Checks that the experts of one token in one layer exist in the model and differ.
    fn check(&self, chosen: &[u16], token: usize, layer: usize) -> Result<(), ReplayFault> {
        for (at, number) in chosen.iter().enumerate() {
            if usize::from(*number) >= self.experts {
                return Err(ReplayFault::Number {
                    found: *number,
                    experts: self.experts,
                    token,
                    layer,
                });
            }
            if chosen[..at].contains(number) {
                return Err(ReplayFault::Twice { token, layer });
            }
        }
        Ok(())
    }

    fn width(&self) -> usize {
        ExpertsSpan::number_bytes(self.experts)
    }
}

#[cfg(test)]
mod tests;
