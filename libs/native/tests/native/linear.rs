//! Compares linear layers and a SwiGLU with a linear layer after it with libtorch's single operations, forward and
//! gradients.

use grpo_native::linear::{LowRank, adapted, gated, linear};
use tch::{Kind, Tensor};

use crate::tested;

/// Output of `f` at `inputs`, and gradients for the output's gradient `above`.
fn gradients(inputs: &[Tensor], above: &Tensor, f: &dyn Fn(&[Tensor]) -> Tensor) -> Vec<Tensor> {
    let leaves: Vec<Tensor> = inputs
        .iter()
        .map(|x| x.to_kind(above.kind()).detach().set_requires_grad(true))
        .collect();
    let y = f(&leaves);
    (&y * above).sum(y.kind()).backward();
    std::iter::once(y.detach())
        .chain(leaves.iter().map(Tensor::grad))
        .collect()
}

fn normal(size: &[i64]) -> Tensor {
    Tensor::randn(size, (Kind::Double, tested()))
}

#[test]
fn linear_layers_and_their_gradients_are_those_of_single_operations() {
    tch::manual_seed(5);
    type Function<'a> = &'a dyn Fn(&[Tensor]) -> Tensor;
    let plain: [Function<'_>; 2] = [&|i| i[0].matmul(&i[1].tr()), &|i| {
        (i[0].silu() * &i[2]).matmul(&i[1].tr())
    }];
    let own: [Function<'_>; 2] = [&|i| linear(&i[0], &i[1]).unwrap(), &|i| {
        gated(&i[0], &i[2], &i[1]).unwrap()
    }];
    for (n, inputs, outputs) in [(1, 1, 1), (3, 37, 5), (130, 64, 200)] {
        let all = [
            normal(&[2, n, inputs]),
            normal(&[outputs, inputs]),
            normal(&[2, n, inputs]),
        ];
        let above = normal(&[2, n, outputs]);
        for at in 0..2 {
            let used = &all[..2 + at];
            let wanted = gradients(used, &above, plain[at]);
            for (kind, bound) in [(Kind::Double, 1e-12), (Kind::Float, 1e-5)] {
                let got = gradients(used, &above.to_kind(kind), own[at]);
                for (got, wanted) in got.iter().zip(&wanted) {
                    assert!(got.is_contiguous() && got.size() == wanted.size());
                    let apart = (got.to_kind(Kind::Double) - wanted).norm().double_value(&[]);
                    let size = wanted.norm().double_value(&[]).max(1.0);
                    assert!(
                        apart < bound * size,
                        "{n} x {inputs} x {outputs} in {kind:?}: {apart:e} of {size}"
                    );
                }
            }
        }
    }
}

/// The frozen weight is last: it gets a gradient too if it is asked for.
#[test]
fn an_adapters_layer_and_its_gradients_are_those_of_single_operations_with_dropout_and_without() {
    tch::manual_seed(6);
    let scale = 0.75;
    for (n, inputs, outputs, rank) in [(1, 1, 1, 1), (3, 37, 5, 2), (130, 64, 200, 8)] {
        let x = normal(&[2, n, inputs]);
        let all = [
            x.shallow_clone(),
            x * 0.5,
            normal(&[rank, inputs]),
            normal(&[outputs, rank]),
            normal(&[outputs, inputs]),
        ];
        let above = normal(&[2, n, outputs]);
        for dropped in [0, 1] {
            let plain =
                |i: &[Tensor]| i[0].matmul(&i[4].tr()) + i[dropped].matmul(&i[2].tr()).matmul(&i[3].tr()) * scale;
            let own = |i: &[Tensor]| {
                let matrices = LowRank {
                    a: &i[2],
                    b: &i[3],
                    scale,
                };
                adapted(&i[0], (dropped == 1).then_some(&i[1]), &i[4], matrices).unwrap()
            };
            let wanted = gradients(&all, &above, &plain);
            for (kind, bound) in [(Kind::Double, 1e-12), (Kind::Float, 1e-5)] {
                let got = gradients(&all, &above.to_kind(kind), &own);
                for (got, wanted) in got.iter().zip(&wanted) {
                    assert_eq!(got.defined(), wanted.defined());
                    if !got.defined() {
                        continue;
                    }
                    let apart = (got.to_kind(Kind::Double) - wanted).norm().double_value(&[]);
                    let size = wanted.norm().double_value(&[]).max(1.0);
                    assert!(
                        got.is_contiguous() && apart < bound * size,
                        "{n} x {inputs} x {outputs}, dropped {dropped}, in {kind:?}: {apart:e} of {size}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_frozen_weight_gets_no_gradient_and_passes_one_on() {
    let (x, w) = (normal(&[3, 4]).set_requires_grad(true), normal(&[2, 4]));
    let y = linear(&x, &w).unwrap();
    y.sum(Kind::Double).backward();
    let wanted = w.sum_dim_intlist(0, true, Kind::Double).expand([3, 4], false);
    assert!(x.grad().allclose(&wanted, 1e-12, 1e-12, false));
    assert!(!w.grad().defined());
}

#[test]
fn shapes_that_do_not_fit_are_refused_with_their_sizes() {
    let refused = linear(&normal(&[3, 4]), &normal(&[2, 5])).unwrap_err().to_string();
    assert!(refused.contains("[3, 4]") && refused.contains("[2, 5]"), "{refused}");
    assert!(gated(&normal(&[3, 4]), &normal(&[4, 3]), &normal(&[2, 4])).is_err());
    let (a, b) = (normal(&[2, 4]), normal(&[5, 3]));
    let matrices = LowRank {
        a: &a,
        b: &b,
        scale: 1.0,
    };
    assert!(adapted(&normal(&[3, 4]), None, &normal(&[5, 4]), matrices).is_err());
}
