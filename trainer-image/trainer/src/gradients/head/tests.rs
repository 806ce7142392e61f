use tch::{Device, Kind};

use super::*;

/// In bf16 a sum of ones stops at 256.
#[test]
fn what_flows_into_a_state_that_many_rows_share_is_summed_in_32_bits() {
    let x = Tensor::zeros([1, 3, 2], (Kind::BFloat16, Device::Cpu));
    let places = [vec![1i64; 512], vec![2]].concat();
    let ones = Tensor::ones([513, 2], (Kind::BFloat16, Device::Cpu));
    let states = to_states(&x, &Tensor::from_slice(&places), &ones);
    assert_eq!((states.size(), states.kind()), (vec![1, 3, 2], Kind::BFloat16));
    let states = Vec::<f32>::try_from(states.to_kind(Kind::Float).reshape([-1])).unwrap();
    assert_eq!(states, [0.0, 0.0, 512.0, 512.0, 1.0, 1.0]);
}
