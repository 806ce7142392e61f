//! The form of requests that a server with OpenAI's API takes.
//!
//! A request is first sent in the form that most servers take. A refusal that names one of the fields below changes the
//! form of this request and of all later ones, so that a later request costs one call. Each of these changes leaves the
//! distribution that is sampled from as it is: a field that changes it stays in the request, and its refusal is the
//! answer.

use super::refusal::ServerRefusal;
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};

/// The limit of an answer, as all servers but OpenAI's newer models take it.
const LIMIT: &str = "max_tokens";
/// The only name of the limit for OpenAI's reasoning models. Other servers may ignore it, and then there is no limit.
const NEW_LIMIT: &str = "max_completion_tokens";

/// Fields that a request can do without, and the value for which that holds (`None`: any). Servers may ignore a seed
/// anyway. A model that takes no temperature or no `top_p` has fixed ones, which are 1; one that refuses the value 1
/// has others.
const OPTIONAL: [(&str, Option<f64>); 3] = [("seed", None), ("temperature", Some(1.0)), ("top_p", Some(1.0))];

/// The most changes of one request: one for each field.
pub const MOST_CHANGES: usize = 1 + OPTIONAL.len();

/// What a server has refused so far.
#[derive(Debug, Default)]
pub struct Dialect {
    new_limit: AtomicBool,
    /// In the order of `OPTIONAL`.
    left_out: [AtomicBool; OPTIONAL.len()],
}

impl Dialect {
    /// Brings a request into the form that the server takes, as far as it is known.
    pub fn apply(&self, asked: &mut Value) {
        if self.new_limit.load(Ordering::Relaxed) {
            rename(asked, LIMIT, NEW_LIMIT);
        }
        for ((name, value), left_out) in OPTIONAL.into_iter().zip(&self.left_out) {
            if left_out.load(Ordering::Relaxed) && is_optional(asked, name, value) {
                remove(asked, name);
            }
        }
    }

    /// Changes a request as the server's refusal demands, and remembers the change. False: there is no such change.
    pub fn adapt(&self, asked: &mut Value, refusal: &ServerRefusal) -> bool {
        let names = [LIMIT, NEW_LIMIT].into_iter().chain(OPTIONAL.map(|(name, _)| name));
        let Some(refused) = refusal.unsupported(names.filter(|name| asked.get(*name).is_some())) else {
            return false;
        };
        let mut optional = OPTIONAL.into_iter().zip(&self.left_out);
        if let Some(((name, value), left_out)) = optional.find(|((name, _), _)| *name == refused) {
            let is_fixed_elsewhere = value.is_some() && refusal.is_of_a_value();
            let may_be_left_out = is_optional(asked, name, value) && !is_fixed_elsewhere;
            if may_be_left_out {
                remove(asked, name);
                if !left_out.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        field = name,
                        "the server refuses this field; it is left out from now on"
                    );
                }
            }
            return may_be_left_out;
        }
        let (from, to) = match refused == LIMIT {
            true => (LIMIT, NEW_LIMIT),
            false => (NEW_LIMIT, LIMIT),
        };
        rename(asked, from, to);
        let is_new = to == NEW_LIMIT;
        if self.new_limit.swap(is_new, Ordering::Relaxed) != is_new {
            tracing::info!("the server refuses {from}; {to} is sent from now on");
        }
        true
    }
}

fn is_optional(asked: &Value, name: &str, value: Option<f64>) -> bool {
    value.is_none_or(|value| asked.get(name).and_then(Value::as_f64) == Some(value))
}

fn remove(asked: &mut Value, name: &str) -> Option<Value> {
    asked.as_object_mut()?.remove(name)
}

fn rename(asked: &mut Value, from: &str, to: &str) {
    if let Some(value) = remove(asked, from) {
        asked[to] = value;
    }
}

#[cfg(test)]
mod tests;
