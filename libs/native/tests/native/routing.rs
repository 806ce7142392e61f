//! Compares a mixture's routing with single operations, forward and gradients; in bf16, where a GPU has kernels, with
//! fp64 as well.

use grpo_native::routing::Routing;
use tch::{Kind, Tensor};

use crate::attention::apart;
use crate::tested;

/// Outputs of dispatch and of combine, and the gradients of tokens, parts and shares.
struct Found {
    dispatched: Tensor,
    combined: Tensor,
    gradients: [Tensor; 3],
}

struct Case {
    experts: Tensor,
    count: usize,
    /// Tokens, parts in the order of the experts, shares; and the gradients of both outputs.
    inputs: [Tensor; 3],
    above: [Tensor; 2],
}

fn case(tokens: i64, per_token: i64, count: i64, h: i64) -> Case {
    let device = tested();
    let normal = |size: &[i64]| Tensor::randn(size, (Kind::Double, device)).to_kind(Kind::BFloat16);
    let parts = tokens * per_token;
    Case {
        // Different experts for each token.
        experts: Tensor::rand([tokens, count], (Kind::Float, device))
            .topk(per_token, 1, true, true)
            .1,
        count: count as usize,
        inputs: [
            normal(&[tokens, h]),
            normal(&[parts, h]),
            Tensor::rand([tokens, per_token], (Kind::Double, device)).to_kind(Kind::BFloat16),
        ],
        above: [normal(&[parts, h]), normal(&[tokens, h])],
    }
}

fn found(case: &Case, kind: Kind, own: bool) -> Found {
    let share_kind = if kind == Kind::Double {
        Kind::Double
    } else {
        Kind::Float
    };
    let leaf = |at: usize, kind: Kind| case.inputs[at].to_kind(kind).detach().set_requires_grad(true);
    let (x, parts, shares) = (leaf(0, kind), leaf(1, kind), leaf(2, share_kind));
    let per_token = case.experts.size()[1];
    let h = x.size()[1];
    let (dispatched, combined) = if own {
        let routing = Routing::of(&case.experts, case.count).unwrap();
        (routing.dispatch(&x).unwrap(), routing.combine(&parts, &shares).unwrap())
    } else {
        let order = case.experts.reshape([-1]).sort_stable(true, 0, false).1;
        let copies = x.unsqueeze(1).expand([-1, per_token, -1], false).reshape([-1, h]);
        let back = parts.index_select(0, &order.argsort(0, false)).view([-1, per_token, h]);
        (
            copies.index_select(0, &order),
            (back * shares.unsqueeze(-1)).sum_dim_intlist(1, false, kind),
        )
    };
    let [above_dispatched, above_combined] = case.above.each_ref().map(|above| above.to_kind(kind));
    ((&dispatched * above_dispatched).sum(kind) + (&combined * above_combined).sum(kind)).backward();
    Found {
        dispatched: dispatched.detach(),
        combined: combined.detach(),
        gradients: [x.grad(), parts.grad(), shares.grad()],
    }
}

#[test]
fn tokens_go_to_their_experts_and_back_as_by_single_operations() {
    tch::manual_seed(7);
    for (tokens, per_token, count, h) in [(1, 1, 1, 4), (7, 2, 5, 12), (300, 8, 16, 64), (65, 10, 12, 2052)] {
        let case = case(tokens, per_token, count, h);
        let exact = found(&case, Kind::Double, false);
        for (kind, bound) in [(Kind::Double, 1e-13), (Kind::Float, 1e-5), (Kind::BFloat16, 1e-2)] {
            let own = found(&case, kind, true);
            let all = |found: &Found| {
                let outputs = [&found.dispatched, &found.combined].map(Tensor::shallow_clone);
                outputs
                    .into_iter()
                    .chain(found.gradients.each_ref().map(Tensor::shallow_clone))
                    .collect::<Vec<_>>()
            };
            for (at, (got, wanted)) in all(&own).iter().zip(all(&exact)).enumerate() {
                let apart = apart(got, &wanted);
                assert!(
                    apart < bound,
                    "{tokens} x {per_token} of {count}, {kind:?}, tensor {at}: {apart:e} apart"
                );
            }
        }
    }
}

#[test]
fn each_experts_tokens_end_behind_those_of_the_experts_before_it() {
    let device = tested();
    let experts = Tensor::from_slice(&[4i64, 0, 2, 4, 0, 4])
        .view([3, 2])
        .to_device(device);
    let routing = Routing::of(&experts, 6).unwrap();
    let ends = Vec::<i32>::try_from(routing.ends.to_device(tch::Device::Cpu)).unwrap();
    assert_eq!(ends, [2, 2, 3, 3, 6, 6]);
}

#[test]
fn tokens_without_an_expert_each_and_wrong_shares_are_refused() {
    let device = tested();
    let experts = Tensor::zeros([3, 2], (Kind::Int64, device));
    let routing = Routing::of(&experts, 1).unwrap();
    let tensor = |size: &[i64]| Tensor::zeros(size, (Kind::Float, device));
    assert!(routing.dispatch(&tensor(&[4, 8])).is_err());
    assert!(routing.combine(&tensor(&[6, 8]), &tensor(&[2, 3])).is_err());
    assert!(routing.combine(&tensor(&[5, 8]), &tensor(&[3, 2])).is_err());
}
