use super::*;

fn task(judged: u32, resolved: u32) -> Samples {
    Samples { judged, resolved }
}

/// The share of all choices of k of n samples that contain one of the first c, which are resolved.
fn by_counting(n: u32, c: u32, k: u32) -> f64 {
    let (mut all, mut passed) = (0u32, 0u32);
    for chosen in 0u32..1 << n {
        if chosen.count_ones() == k {
            all += 1;
            passed += u32::from(chosen & ((1 << c) - 1) != 0);
        }
    }
    f64::from(passed) / f64::from(all)
}

#[test]
fn a_tasks_estimate_is_the_share_of_all_choices_of_k_samples() {
    for n in 1..=12 {
        for c in 0..=n {
            for k in 1..=n {
                let found = of_task(task(n, c), k);
                assert!((found - by_counting(n, c, k)).abs() < 1e-12, "{n} {c} {k}: {found}");
            }
        }
    }
    // Also for many samples.
    assert!((of_task(task(10_000, 5_000), 1) - 0.5).abs() < 1e-12);
}

#[test]
fn pass_at_one_is_the_mean_rate_and_tasks_with_too_few_verdicts_do_not_count() {
    let tasks = [task(4, 4), task(4, 0), task(4, 1), task(2, 2), task(0, 0)];
    let one = PassAt::of(&tasks, 1).unwrap();
    assert!((one.rate - (1.0 + 0.0 + 0.25 + 1.0) / 4.0).abs() < 1e-12);
    assert_eq!(one.tasks, 4);
    assert_eq!(
        PassAt::of(&tasks, 4).map(|four| (four.rate, four.tasks)),
        Some((2.0 / 3.0, 3))
    );
    assert_eq!(PassAt::of(&tasks, 5), None);
    assert_eq!(PassAt::of(&[], 1), None);
    let ks: Vec<u32> = PassAt::all(&[task(6, 1)]).iter().map(|one| one.k).collect();
    assert_eq!(ks, [1, 2, 4, 6]);
    assert!(PassAt::all(&[]).is_empty());
}

/// SplitMix64, so that the test draws the same numbers each time.
fn draws(mut state: u64) -> impl FnMut(usize) -> usize {
    move |below| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut drawn = state;
        drawn = (drawn ^ (drawn >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        drawn = (drawn ^ (drawn >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((drawn ^ (drawn >> 31)) % below as u64) as usize
    }
}

#[test]
fn the_interval_is_that_of_a_bootstrap_over_tasks() {
    let mut draw = draws(7);
    let tasks: Vec<Samples> = (0..300)
        .map(|number| {
            let chance = (number % 10) as usize;
            task(8, (0..8).filter(|_| draw(10) < chance).count() as u32)
        })
        .collect();
    for k in [1, 2, 4, 8] {
        let found = PassAt::of(&tasks, k).unwrap();
        let rates: Vec<f64> = tasks.iter().map(|task| of_task(*task, k)).collect();
        let mut means: Vec<f64> = (0..10_000)
            .map(|_| (0..rates.len()).map(|_| rates[draw(rates.len())]).sum::<f64>() / rates.len() as f64)
            .collect();
        means.sort_by(f64::total_cmp);
        assert!(
            (found.low - means[250]).abs() < 0.003,
            "pass@{k}: {found:?}, {}",
            means[250]
        );
        assert!(
            (found.high - means[9750]).abs() < 0.003,
            "pass@{k}: {found:?}, {}",
            means[9750]
        );
    }
}

#[test]
fn a_set_without_a_difference_has_an_interval_all_the_same() {
    let none = PassAt::of(&[task(2, 0); 20], 1).unwrap();
    assert_eq!((none.rate, none.low), (0.0, 0.0));
    assert!((none.high - 0.161).abs() < 0.001, "{none:?}");
    let all = PassAt::of(&[task(2, 2); 20], 1).unwrap();
    assert_eq!(all.high, 1.0);
    assert!((all.low - 0.839).abs() < 0.001, "{all:?}");
    assert_eq!(all.in_words(), "pass@1 100.0 % (95 %: 83.9 to 100.0) of 20 tasks");
}

#[test]
fn tasks_with_equal_estimates_have_an_interval_though_their_mean_is_rounded() {
    let tasks = [Samples { judged: 5, resolved: 4 }; 3];
    let found = PassAt::of(&tasks, 1).unwrap();
    assert!(found.low < 0.4 && found.high > 0.9, "{found:?}");
}
