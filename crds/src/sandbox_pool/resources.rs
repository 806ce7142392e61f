//! What one sandbox may use. Every sandbox is bounded, also where its pool says little or nothing: what runs in it is
//! trained to find out what it can take.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::ResourceRequirements, apimachinery::pkg::api::resource::Quantity};

const MEMORY: &str = "memory";

/// Of a resource that a pool does not name: the limit, and what is requested. SWE-bench's images need no more; most use
/// far less, so that small clusters hold many.
const DEFAULTS: [(&str, &str, &str); 3] = [
    ("cpu", "4", "10m"),
    (MEMORY, "8Gi", "512Mi"),
    ("ephemeral-storage", "20Gi", "1Gi"),
];

type Amounts = BTreeMap<String, Quantity>;

/// The default of `resources`.
pub(super) fn default_resources() -> Option<ResourceRequirements> {
    let amounts = |which: fn(&(&str, &str, &str)) -> (String, Quantity)| Some(DEFAULTS.iter().map(which).collect());
    Some(ResourceRequirements {
        limits: amounts(|(name, limit, _)| ((*name).to_owned(), Quantity((*limit).to_owned()))),
        requests: amounts(|(name, _, request)| ((*name).to_owned(), Quantity((*request).to_owned()))),
        ..ResourceRequirements::default()
    })
}

/// What each sandbox requests and is limited to, where its pool names this.
pub(super) fn bounded(resources: Option<&ResourceRequirements>) -> ResourceRequirements {
    let mut resources = resources.cloned().unwrap_or_default();
    let given: Amounts = resources.limits.clone().unwrap_or_default();
    let limits = resources.limits.get_or_insert_default();
    let requests = resources.requests.get_or_insert_default();
    for (name, limit, request) in DEFAULTS {
        let (limit, request) = (Quantity(limit.to_owned()), Quantity(request.to_owned()));
        match (given.get(name), requests.get(name)) {
            (Some(_), Some(_)) => {}
            (None, Some(requested)) => {
                let limit = if exceeds(requested, &limit) {
                    requested.clone()
                } else {
                    limit
                };
                limits.insert(name.to_owned(), limit);
            }
            (None, None) => {
                limits.insert(name.to_owned(), limit);
                requests.insert(name.to_owned(), request);
            }
            (Some(given), None) => {
                let whole = name == MEMORY || exceeds(&request, given);
                // Kubernetes would request all of what is limited.
                requests.insert(name.to_owned(), if whole { given.clone() } else { request });
            }
        }
    }
    resources
}

fn exceeds(one: &Quantity, other: &Quantity) -> bool {
    amount(one) > amount(other)
}

/// A quantity as a number; none if it is not one, which the API server then says.
fn amount(quantity: &Quantity) -> Option<f64> {
    let text = quantity.0.trim();
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let unit = text.find(|c: char| !c.is_ascii_digit() && !"+-.".contains(c))?;
    let (number, unit) = text.split_at(unit);
    let factor = match unit {
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 2f64.powi(10),
        "Mi" => 2f64.powi(20),
        "Gi" => 2f64.powi(30),
        "Ti" => 2f64.powi(40),
        "Pi" => 2f64.powi(50),
        "Ei" => 2f64.powi(60),
        _ => return None,
    };
    number.parse::<f64>().ok().map(|number| number * factor)
}

#[cfg(test)]
mod tests;
