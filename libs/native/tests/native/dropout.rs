//! Keys alone decide which values are dropped, and the gradient has the same mask.

use grpo_native::dropout::dropout;
use grpo_native::generic;
use tch::{Device, Kind, Tensor};

/// Keys as random as a step's, by SplitMix64.
fn keys(n: i64) -> Tensor {
    let key = |at: i64| {
        let mut x = (at as u64 + 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)).cast_signed()
    };
    Tensor::from_slice(&(0..n).map(key).collect::<Vec<i64>>())
}

#[test]
fn a_value_is_dropped_by_its_row_s_key_its_column_and_the_salt_alone() {
    let keys = keys(300);
    let x = Tensor::ones([300, 70], (Kind::Double, Device::Cpu));
    let dropped = dropout(&x, &keys, 7, 0.3).unwrap();
    let backwards = Tensor::arange(300, (Kind::Int64, Device::Cpu)).flip([0]);
    let others = dropout(&x, &keys.index_select(0, &backwards), 7, 0.3).unwrap();
    assert_eq!(others.index_select(0, &backwards), dropped);
    assert_eq!(
        dropout(&x.view([3, 100, 70]), &keys, 7, 0.3).unwrap().view([300, 70]),
        dropped
    );
    assert_eq!(
        dropout(&x.narrow(1, 0, 9), &keys, 7, 0.3).unwrap(),
        dropped.narrow(1, 0, 9)
    );
    assert_ne!(dropout(&x, &keys, 8, 0.3).unwrap(), dropped);
    // By operations, as on other devices.
    assert_eq!(generic(|| dropout(&x, &keys, 7, 0.3)).unwrap(), dropped);
    assert_eq!(dropout(&x, &keys, 7, 0.0).unwrap(), x);
}

#[test]
fn so_many_are_dropped_and_the_mean_stays_in_rows_and_in_columns() {
    let x = Tensor::ones([4000, 64], (Kind::Double, Device::Cpu));
    for rate in [0.05, 0.5, 0.9] {
        let dropped = dropout(&x, &keys(4000), 1, rate).unwrap();
        let share = dropped
            .eq(0.0)
            .to_kind(Kind::Double)
            .mean(Kind::Double)
            .double_value(&[]);
        // Five standard deviations of 256,000 draws, then of 4,000, of all 64 columns.
        let bound = |draws: f64| 5.0 * (rate * (1.0 - rate) / draws).sqrt();
        assert!((share - rate).abs() < bound(256e3), "{share} of {rate}");
        let means = dropped.mean_dim(Some(&[0i64][..]), false, Kind::Double);
        let apart = (means - 1.0).abs().max().double_value(&[]) * (1.0 - rate);
        assert!(apart < bound(4e3), "{apart} of {rate}");
    }
}

#[test]
fn a_gradient_is_dropped_as_its_value_was() {
    for work in [false, true] {
        for (kind, bound) in [(Kind::Double, 1e-15), (Kind::Float, 1e-6), (Kind::BFloat16, 1e-2)] {
            let keys = keys(40);
            let x = Tensor::randn([40, 33], (kind, Device::Cpu)).set_requires_grad(true);
            let above = Tensor::randn([40, 33], (kind, Device::Cpu));
            let run = || dropout(&x, &keys, 5, 0.4).unwrap();
            let y = if work { generic(run) } else { run() };
            (&y * &above).sum(Kind::Float).backward();
            let mask = dropout(&x.detach().ones_like().to_kind(Kind::Double), &keys, 5, 0.4).unwrap();
            for (got, from) in [(y.detach(), x.detach()), (x.grad(), above)] {
                let apart = (got.to_kind(Kind::Double) - from.to_kind(Kind::Double) * &mask)
                    .abs()
                    .max();
                assert!(apart.double_value(&[]) < 10.0 * bound, "{apart:?}");
            }
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let x = Tensor::ones([4, 3], (Kind::Float, Device::Cpu));
    assert!(dropout(&x, &keys(3), 1, 0.5).is_err());
    assert!(dropout(&x, &keys(4), 1, 1.0).is_err());
    assert!(dropout(&x, &keys(4).to_kind(Kind::Int), 1, 0.5).is_err());
}
