use super::*;
use grpo_crds::algorithm::Band;

fn tokens(ratios: &[f64]) -> Vec<TokenLogprobs> {
    let token = |ratio: &f64| TokenLogprobs {
        rollout: -1.0,
        old: -1.0 + ratio.ln(),
        new: -1.0 + ratio.ln(),
    };
    ratios.iter().map(token).collect()
}

fn weights(correction: &Correction, tokens: &[TokenLogprobs], advantage: f64) -> Vec<f64> {
    let mut sums = Sums::default();
    for token in tokens {
        sums.add(token, token.rollout);
    }
    let weight = |token| weight(correction, &sums, advantage, token);
    tokens.iter().map(weight).collect()
}

fn near(found: &[f64], wanted: &[f64]) {
    assert_eq!(found.len(), wanted.len());
    assert!(
        found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-12),
        "{found:?} {wanted:?}"
    );
}

const BAND: Band = Band { low: 0.5, high: 2.0 };

#[test]
fn truncation_holds_a_ratio_in_its_band_and_ice_pop_leaves_out_what_is_outside() {
    let seen = tokens(&[0.25, 1.5, 4.0]);
    let tis = Correction {
        truncated_importance: Some(BAND),
        ..Default::default()
    };
    near(&weights(&tis, &seen, 1.0), &[0.5, 1.5, 2.0]);
    let pop = Correction {
        ice_pop: Some(BAND),
        ..Default::default()
    };
    near(&weights(&pop, &seen, 1.0), &[0.0, 1.5, 0.0]);
}

#[test]
fn at_the_level_of_sequences_the_product_decides_for_all() {
    let pop = Correction {
        level: Ratio::Sequence,
        ice_pop: Some(BAND),
        ..Default::default()
    };
    near(&weights(&pop, &tokens(&[0.25, 4.0]), 1.0), &[1.0, 1.0]);
    near(&weights(&pop, &tokens(&[1.5, 1.5]), 1.0), &[0.0, 0.0]);
}

#[test]
fn a_geometric_mask_looks_at_the_mean_and_a_sequence_mask_only_at_bad_sequences() {
    let geometric_mask = Correction {
        geometric_mask: Some(BAND),
        ..Default::default()
    };
    near(&weights(&geometric_mask, &tokens(&[8.0, 0.25]), 1.0), &[1.0, 1.0]);
    near(&weights(&geometric_mask, &tokens(&[8.0, 8.0]), 1.0), &[0.0, 0.0]);
    let mask = Correction {
        sequence_mask: Some(0.5),
        ..Default::default()
    };
    let drifted = tokens(&[0.1, 0.1]);
    near(&weights(&mask, &drifted, 1.0), &[1.0, 1.0]);
    near(&weights(&mask, &drifted, -1.0), &[0.0, 0.0]);
    // The policy gives the bad sequence a higher probability than the engine did: it stays, so that training lowers it.
    near(&weights(&mask, &tokens(&[10.0, 10.0]), -1.0), &[1.0, 1.0]);
}

#[test]
fn a_band_from_zero_has_no_lower_end() {
    let mask = Correction {
        geometric_mask: Some(Band { low: 0.0, high: 2.0 }),
        ..Default::default()
    };
    near(&weights(&mask, &tokens(&[1e-9]), 1.0), &[1.0]);
}
