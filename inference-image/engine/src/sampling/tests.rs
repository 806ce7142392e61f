use super::*;

fn plain(seed: u64) -> Sampling {
    Sampling {
        temperature: 1.0,
        top_p: 1.0,
        top_k: 0,
        penalties: Penalties::default(),
        seed,
    }
}

/// Row 0 with a prompt of so many tokens that are nowhere in the vocabulary.
fn after(tokens: &[u32]) -> SoFar<'_> {
    SoFar {
        row: 0,
        tokens,
        prompt: tokens.len(),
    }
}

/// Positions as far as tests look.
fn nothing(position: u32) -> SoFar<'static> {
    static PROMPT: [u32; 100_000] = [u32::MAX; 100_000];
    after(&PROMPT[..position as usize])
}

#[test]
fn philox_gives_the_published_answers() {
    assert_eq!(
        philox([0; 4], [0; 2]),
        [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
    );
    assert_eq!(
        philox([u32::MAX; 4], [u32::MAX; 2]),
        [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
    );
}

#[test]
fn tokens_come_as_often_as_their_probability_says() {
    let logits = [0.0_f32, 1.0, 2.0, -1.0];
    let total: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
    let mut counts = [0_u32; 4];
    for position in 0..100_000 {
        counts[plain(3).sample(&logits, nothing(position)).unwrap().token as usize] += 1;
    }
    for (count, logit) in counts.iter().zip(logits) {
        let expected = f64::from(logit).exp() / total;
        let deviation = (expected * (1.0 - expected) / 100_000.0).sqrt();
        assert!((f64::from(*count) / 100_000.0 - expected).abs() < 5.0 * deviation);
    }
}

#[test]
fn the_logprob_is_that_of_the_processed_distribution() {
    let logits = [0.5_f32, 1.5, -0.5, 1.0];
    let sampling = Sampling {
        temperature: 0.5,
        top_p: 1.0,
        top_k: 2,
        penalties: Penalties::default(),
        seed: 1,
    };
    for position in 0..50 {
        let sampled = sampling.sample(&logits, nothing(position)).unwrap();
        assert!([1, 3].contains(&sampled.token));
        let expected = f64::from(logits[sampled.token as usize]) / 0.5 - (3.0_f64.exp() + 2.0_f64.exp()).ln();
        assert!((f64::from(sampled.logprob) - expected).abs() < 1e-6);
    }
}

#[test]
fn top_p_keeps_the_smallest_set_that_reaches_it() {
    let logits = [0.5_f32.ln(), 0.3_f32.ln(), 0.2_f32.ln()];
    let seen = |top_p| -> std::collections::BTreeSet<u32> {
        let sampling = Sampling { top_p, ..plain(9) };
        (0..200)
            .map(|position| sampling.sample(&logits, nothing(position)).unwrap().token)
            .collect()
    };
    assert_eq!(seen(0.4), [0].into());
    assert_eq!(seen(0.7), [0, 1].into());
    assert_eq!(seen(0.95), [0, 1, 2].into());
}

#[test]
fn greedy_takes_the_first_of_the_likeliest_and_reports_the_plain_logprob() {
    let sampled = Sampling {
        temperature: 0.0,
        ..plain(0)
    }
    .sample(&[1.0, 3.0, 3.0], nothing(0))
    .unwrap();
    assert_eq!(sampled.token, 1);
    let expected = 3.0 - (1.0_f64.exp() + 2.0 * 3.0_f64.exp()).ln();
    assert!((f64::from(sampled.logprob) - expected).abs() < 1e-6);
}

#[test]
fn logits_that_are_no_numbers_are_an_error_and_not_a_token() {
    assert_eq!(plain(0).sample(&[0.0, f32::NAN], nothing(0)), Err(NonFinite));
    assert_eq!(plain(0).sample(&[f32::NEG_INFINITY; 2], nothing(0)), Err(NonFinite));
}

/// The frequency of each token in many draws.
fn shares(sampling: impl Fn(u64) -> Sampling, logits: &[f32], tokens: &[u32], prompt: usize) -> Vec<f64> {
    let draws = 40_000;
    let mut counts = vec![0.0; logits.len()];
    for seed in 0..draws {
        let so_far = SoFar { row: 0, tokens, prompt };
        counts[sampling(seed).sample(logits, so_far).unwrap().token as usize] += 1.0 / draws as f64;
    }
    counts
}

fn soft(logits: &[f64]) -> Vec<f64> {
    let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
    logits.iter().map(|logit| logit.exp() / total).collect()
}

#[test]
fn penalties_change_the_distribution_as_their_names_say_and_logprobs_are_of_what_is_sampled_from() {
    let logits = [1.0, 0.5, -0.5, 0.0];
    // Token 3 is only in the prompt; token 0 was sampled twice, token 2 once.
    let (tokens, prompt) = ([3, 0, 2, 0], 1);
    for (penalties, changed) in [
        (Penalties::default(), [1.0, 0.5, -0.5, 0.0]),
        (
            Penalties {
                presence_penalty: 0.7,
                ..Penalties::default()
            },
            [0.3, 0.5, -1.2, 0.0],
        ),
        (
            Penalties {
                frequency_penalty: 0.4,
                ..Penalties::default()
            },
            [0.2, 0.5, -0.9, 0.0],
        ),
        (
            Penalties {
                repetition_penalty: 2.0,
                ..Penalties::default()
            },
            [0.5, 0.5, -1.0, 0.0],
        ),
    ] {
        let sampling = |seed| Sampling {
            penalties,
            ..plain(seed)
        };
        let expected = soft(&changed);
        for (found, expected) in shares(sampling, &logits, &tokens, prompt).iter().zip(&expected) {
            assert!(
                (found - expected).abs() < 0.02,
                "{penalties:?}: {found}, not {expected}"
            );
        }
        let so_far = SoFar {
            row: 0,
            tokens: &tokens,
            prompt,
        };
        let sampled = sampling(7).sample(&logits, so_far).unwrap();
        assert!((f64::from(sampled.logprob) - expected[sampled.token as usize].ln()).abs() < 1e-6);
    }
}

#[test]
fn min_p_leaves_out_what_is_less_likely_than_its_share_of_the_likeliest_after_the_temperature() {
    // Weights 1, 0.5, 0.25 and 0.125 of the likeliest.
    let logits = [3.0, 2.0, 1.0, 0.0].map(|power: f32| power * std::f32::consts::LN_2);
    let with = |min_p: f64, temperature: f64| {
        let penalties = Penalties {
            min_p,
            ..Penalties::default()
        };
        let sampling = move |seed| Sampling {
            penalties,
            temperature,
            ..plain(seed)
        };
        shares(sampling, &logits, &[0], 1)
            .iter()
            .filter(|share| **share > 0.0)
            .count()
    };
    assert_eq!(
        [with(0.0, 1.0), with(0.2, 1.0), with(0.4, 1.0), with(1.0, 1.0)],
        [4, 3, 2, 1]
    );
    // At temperature 2 the weights are 1, 0.71, 0.5 and 0.35.
    assert_eq!(with(0.4, 2.0), 3);
}

#[test]
fn what_is_cut_of_a_large_vocabulary_is_what_sorting_all_of_it_says() {
    let mut state = 7u64;
    let mut drawn = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Many are equal.
        ((state >> 33) % 4000) as f64 / 4000.0
    };
    let weights: Vec<f64> = (0..5000).map(|_| drawn()).collect();
    for (top_k, top_p) in [
        (0, 0.3),
        (0, 0.99),
        (1, 1.0),
        (64, 1.0),
        (65, 0.9),
        (3000, 0.5),
        (5000, 0.01),
    ] {
        let sampling = Sampling {
            top_k,
            top_p,
            ..plain(1)
        };
        let mut order: Vec<usize> = (0..weights.len()).collect();
        order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]).then(a.cmp(b)));
        order.truncate(if top_k == 0 { weights.len() } else { top_k });
        if top_p < 1.0 {
            let enough = top_p * order.iter().map(|id| weights[*id]).sum::<f64>();
            let mut reached = 0.0;
            let count = order.iter().take_while(|id| {
                let short = reached < enough;
                reached += weights[**id];
                short
            });
            order.truncate(count.count().max(1));
        }
        let mut found = weights.clone();
        sampling.cut(&mut found);
        for (id, weight) in weights.iter().enumerate() {
            let wanted = if order.contains(&id) { *weight } else { 0.0 };
            assert_eq!(found[id], wanted, "{id} of top_k {top_k}, top_p {top_p}");
        }
    }
}
