use super::*;

fn plain(seed: u64) -> Sampling {
    Sampling {
        temperature: 1.0,
        top_p: 1.0,
        top_k: 0,
        seed,
    }
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
        counts[plain(3).sample(&logits, 0, position).unwrap().token as usize] += 1;
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
        seed: 1,
    };
    for position in 0..50 {
        let sampled = sampling.sample(&logits, 0, position).unwrap();
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
            .map(|position| sampling.sample(&logits, 0, position).unwrap().token)
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
    .sample(&[1.0, 3.0, 3.0], 0, 0)
    .unwrap();
    assert_eq!(sampled.token, 1);
    let expected = 3.0 - (1.0_f64.exp() + 2.0 * 3.0_f64.exp()).ln();
    assert!((f64::from(sampled.logprob) - expected).abs() < 1e-6);
}

#[test]
fn logits_that_are_no_numbers_are_an_error_and_not_a_token() {
    assert_eq!(plain(0).sample(&[0.0, f32::NAN], 0, 0), Err(NonFinite));
    assert_eq!(plain(0).sample(&[f32::NEG_INFINITY; 2], 0, 0), Err(NonFinite));
}
