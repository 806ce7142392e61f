use super::*;

#[test]
fn exp_agrees_with_the_library_over_the_whole_range() {
    for step in -87_000..88_000 {
        let x = step as f32 / 1000.0;
        let expected = f64::from(x).exp();
        let error = (f64::from(exp(x)) - expected).abs() / expected;
        assert!(error < 2e-7, "exp({x}) is off by {error:e}");
    }
}

#[test]
fn a_product_gives_the_same_bits_for_any_number_of_rows() {
    let (inputs, outputs) = (37, 21);
    let value = |i: usize| ((i * 7919 % 1009) as f32 / 1009.0 - 0.5) * 1.7;
    let weight: Vec<f32> = (0..inputs * outputs).map(value).collect();
    let x: Vec<f32> = (0..20 * inputs).map(|i| value(i + 5)).collect();
    let panels = Panels::pack(&[&weight], inputs);
    let mut together = vec![0.0; 20 * outputs];
    panels.apply(&x, &mut together);
    for row in 0..20 {
        let mut alone = vec![0.0; outputs];
        panels.apply(&x[row * inputs..][..inputs], &mut alone);
        assert_eq!(alone, together[row * outputs..][..outputs]);
        let exact: f64 = (0..inputs)
            .map(|k| f64::from(x[row * inputs + k]) * f64::from(weight[k]))
            .sum();
        assert!((f64::from(alone[0]) - exact).abs() < 1e-5);
    }
}
