//! The size of a model, from its name.

use grpo_crds::{GrpoRunSpec, sources::ModelSource};

/// The size of a model, from its name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    pub parameters: f64,
    /// Active parameters for each token; fewer in a mixture of experts.
    pub active: f64,
}

/// The name of the run's model at its source.
pub fn model_name(spec: &GrpoRunSpec) -> Option<String> {
    source_name(&spec.model.source())
}

/// The name of a model at its source.
pub fn source_name(model: &ModelSource) -> Option<String> {
    let hub = model.hub.as_ref().map(|hub| hub.repo.clone());
    let image = || {
        let image = model.image.as_ref()?;
        Some(joined(&image.reference, image.path.as_deref()))
    };
    let claim = || {
        let claim = model.persistent_volume_claim.as_ref()?;
        Some(joined(&claim.claim_name, claim.path.as_deref()))
    };
    hub.or_else(image)
        .or_else(claim)
        .or_else(|| model.object_store.as_ref().map(|store| store.url.clone()))
}

fn joined(place: &str, path: Option<&str>) -> String {
    path.map_or_else(|| place.to_owned(), |path| format!("{place}/{path}"))
}

/// The size in a name: `Qwen3-32B`, `Qwen2.5-Coder-7B-Instruct`, `30B-A3B`. In a path, the last part with a size
/// decides.
pub fn size(name: &str) -> Option<Size> {
    name.rsplit('/').find_map(|part| {
        let words: Vec<&str> = part.split(['-', '_', ':', '@']).collect();
        let parameters = words.iter().find_map(|word| amount(word))?;
        let active = words
            .iter()
            .find_map(|word| amount(word.strip_prefix(['A', 'a'])?))
            .filter(|active| *active < parameters);
        Some(Size {
            parameters,
            active: active.unwrap_or(parameters),
        })
    })
}

/// `0.6B`, `135M`
fn amount(word: &str) -> Option<f64> {
    let (number, unit) = match word.strip_suffix(['B', 'b']) {
        Some(number) => (number, 1e9),
        None => (word.strip_suffix(['M', 'm'])?, 1e6),
    };
    let digits = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = number.parse().ok().filter(|_| digits)?;
    let amount = number * unit;
    (1e6..=1e13).contains(&amount).then_some(amount)
}

#[cfg(test)]
mod tests;
