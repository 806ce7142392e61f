//! Sampling settings beyond temperature, `top_p` and `top_k`, in the terms of vLLM and SGLang.

use serde::{Deserialize, Serialize};

/// The default changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Penalties {
    /// Drops tokens whose probability is below this share of the likeliest token's, after the temperature; 0 drops
    /// none.
    pub min_p: f64,
    /// Subtracted from the logit of each token that already occurs in the same answer.
    pub presence_penalty: f64,
    /// Subtracted from the logit once for each time the token already occurs in the same answer.
    pub frequency_penalty: f64,
    /// Divides the positive logits and multiplies the negative logits of each token of prompt and answer (CTRL, arXiv
    /// 1909.05858); 1 changes nothing.
    pub repetition_penalty: f64,
}

impl Default for Penalties {
    fn default() -> Self {
        Self {
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
        }
    }
}

impl Penalties {
    pub fn is_off(&self) -> bool {
        *self == Self::default()
    }

    /// The values for a request. `None` for a value that changes nothing, so that a server that does not know the field
    /// does not get it.
    pub(crate) fn given(&self) -> [Option<f64>; 4] {
        let values = |all: &Self| {
            [
                all.min_p,
                all.presence_penalty,
                all.frequency_penalty,
                all.repetition_penalty,
            ]
        };
        let off = values(&Self::default());
        std::array::from_fn(|at| Some(values(self)[at]).filter(|value| *value != off[at]))
    }

    /// The settings that change something, by their names in a request.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let names = ["min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"];
        let given = names.into_iter().zip(self.given());
        given.filter_map(|(name, value)| Some((name, value?)))
    }

    /// The field that is out of bounds, and its bounds.
    pub fn fault(&self) -> Option<String> {
        let within = |name: &str, value: f64, low: f64, high: f64| {
            let good = (low..=high).contains(&value);
            (!good).then(|| format!("{name} is {value}, must be from {low} to {high}"))
        };
        within("min_p", self.min_p, 0.0, 1.0)
            .or_else(|| within("presence_penalty", self.presence_penalty, -2.0, 2.0))
            .or_else(|| within("frequency_penalty", self.frequency_penalty, -2.0, 2.0))
            .or_else(|| within("repetition_penalty", self.repetition_penalty, 0.01, 10.0))
    }
}

/// The penalties of a request. An absent field changes nothing.
pub(crate) fn of_request(
    min_p: Option<f64>,
    presence: Option<f64>,
    frequency: Option<f64>,
    repetition: Option<f64>,
) -> Penalties {
    let off = Penalties::default();
    Penalties {
        min_p: min_p.unwrap_or(off.min_p),
        presence_penalty: presence.unwrap_or(off.presence_penalty),
        frequency_penalty: frequency.unwrap_or(off.frequency_penalty),
        repetition_penalty: repetition.unwrap_or(off.repetition_penalty),
    }
}
