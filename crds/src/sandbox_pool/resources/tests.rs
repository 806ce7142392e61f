#![allow(clippy::unwrap_used)]

use super::*;

/// Limits and requests of the three resources, as a pool's sandboxes have them.
fn of(resources: &str) -> (Vec<String>, Vec<String>) {
    let resources: Option<ResourceRequirements> = serde_yaml_ng::from_str(resources).unwrap();
    let resources = bounded(resources.as_ref());
    let shown = |amounts: Option<Amounts>| {
        let amounts = amounts.unwrap();
        assert_eq!(amounts.len(), 3, "{amounts:?}");
        DEFAULTS.map(|(name, ..)| amounts[name].0.clone()).into()
    };
    (shown(resources.limits), shown(resources.requests))
}

#[test]
fn a_pool_that_says_nothing_has_bounded_sandboxes() {
    let (limits, requests) = of("null");
    assert_eq!(limits, ["4", "8Gi", "20Gi"]);
    assert_eq!(requests, ["10m", "512Mi", "1Gi"]);
    assert_eq!(of("{}"), of("null"));
    assert_eq!(bounded(default_resources().as_ref()), default_resources().unwrap());
}

#[test]
fn what_a_pool_leaves_out_is_bounded_all_the_same() {
    let (limits, requests) = of("{requests: {cpu: 10m}, limits: {cpu: 500m, memory: 128Mi}}");
    assert_eq!(limits, ["500m", "128Mi", "20Gi"]);
    assert_eq!(requests, ["10m", "128Mi", "1Gi"], "memory is reserved in full");
    let (limits, requests) = of("{requests: {cpu: '6', memory: 16Gi, ephemeral-storage: 2Gi}}");
    assert_eq!(limits, ["6", "16Gi", "20Gi"], "never below what is requested");
    assert_eq!(requests, ["6", "16Gi", "2Gi"]);
    let (_, requests) = of("{limits: {cpu: 5m, memory: 1Gi, ephemeral-storage: 256Mi}}");
    assert_eq!(requests, ["5m", "1Gi", "256Mi"], "never above the limit");
}

#[test]
fn a_request_of_memory_that_is_named_stands() {
    let (limits, requests) = of("{requests: {memory: 1Gi}, limits: {memory: 8Gi}}");
    assert_eq!((limits[1].as_str(), requests[1].as_str()), ("8Gi", "1Gi"));
}

#[test]
fn quantities_are_compared_as_numbers() {
    let amount = |text: &str| amount(&Quantity(text.to_owned()));
    for (text, number) in [
        ("4", 4.0),
        ("500m", 0.5),
        ("1Gi", 1_073_741_824.0),
        ("1e3", 1000.0),
        ("1.5G", 1.5e9),
    ] {
        assert_eq!(amount(text), Some(number), "{text}");
    }
    for text in ["", "x", "1 GB", "Gi"] {
        assert_eq!(amount(text), None, "{text:?}");
    }
}
