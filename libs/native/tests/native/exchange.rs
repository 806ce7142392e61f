//! Groups of some ranks, the exchange and pending collectives, over processes with a rendezvous on the loopback.

use std::process::Command;
use std::time::Duration;

use grpo_native::{Exchange, Group, Rendezvous};
use tch::{Kind, Tensor};

use crate::port::free_port;

/// Runs a test of this file again as every rank of a world, where it runs `work`.
fn ranks(test: &str, world: u32, work: impl Fn(Group)) {
    if let Ok(rank) = std::env::var("TEST_RANK") {
        let local = "127.0.0.1".to_owned();
        let group = Group::join(&Rendezvous {
            rank: rank.parse().unwrap(),
            world,
            address: local.clone(),
            port: std::env::var("TEST_PORT").unwrap().parse().unwrap(),
            own_host: local,
            interface: String::new(),
            timeout: Duration::from_secs(60),
        });
        return work(group.unwrap());
    }
    let port = free_port().to_string();
    let start = |rank: u32| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("exchange::{test}"), "--nocapture"]);
        command.env("TEST_RANK", rank.to_string()).env("TEST_PORT", &port);
        command.spawn().unwrap()
    };
    let started: Vec<_> = (0..world).map(start).collect();
    for (rank, mut process) in started.into_iter().enumerate() {
        assert!(process.wait().unwrap().success(), "rank {rank}");
    }
}

/// Numbers that differ between ranks and uses.
fn numbers(rank: usize, use_: usize, size: &[i64]) -> Tensor {
    let n: i64 = size.iter().product();
    let first = (1000 * rank + 100 * use_) as f64;
    (Tensor::arange(n, (Kind::Double, tch::Device::Cpu)) * 0.37 + first)
        .sin()
        .view(size)
}

#[test]
fn an_exchange_and_its_gradient_are_those_of_all_ranks_in_one_place() {
    ranks(
        "an_exchange_and_its_gradient_are_those_of_all_ranks_in_one_place",
        3,
        |group| {
            let own = group.rank() as usize;
            let all: Vec<u32> = (0..3).collect();
            let exchange = Exchange::new(group.part("line", &all, true).unwrap()).unwrap();
            let size = [3i64, 4, 2];
            let x = numbers(own, 0, &size).set_requires_grad(true);
            let y = exchange.all_to_all(&(&x * 2.0));
            // The loss of rank r: its y, weighted by its own numbers.
            (&y * numbers(own, 1, &size)).sum(Kind::Double).backward();
            for other in 0..3 {
                let block = |of: usize, at: usize, use_: usize| numbers(of, use_, &size).get(at as i64);
                assert!(
                    y.get(other)
                        .allclose(&(block(other as usize, own, 0) * 2.0), 0.0, 0.0, false)
                );
                let wanted = block(other as usize, own, 1) * 2.0;
                assert!(x.grad().get(other).allclose(&wanted, 0.0, 0.0, false));
            }
            exchange.check().unwrap();
        },
    );
}

#[test]
fn groups_of_some_ranks_do_not_hear_each_other() {
    ranks("groups_of_some_ranks_do_not_hear_each_other", 4, |group| {
        let own = group.rank();
        let row = group.part("row", &[own / 2 * 2, own / 2 * 2 + 1], false).unwrap();
        let column = group.part("column", &[own % 2, own % 2 + 2], false).unwrap();
        assert_eq!([row.rank(), column.rank()], [own % 2, own / 2]);
        let sum = |group: &Group| {
            let mut sum = Tensor::from_slice(&[f64::from(1 << own)]);
            group.all_reduce_sum(&mut sum).unwrap();
            sum.double_value(&[0]) as u32
        };
        for _ in 0..20 {
            assert_eq!(sum(&row), if own < 2 { 0b0011 } else { 0b1100 });
            assert_eq!(sum(&column), if own % 2 == 0 { 0b0101 } else { 0b1010 });
            assert_eq!(sum(&group), 0b1111);
        }
        assert!(group.part("others", &[(own + 1) % 4], false).is_err());
    });
}

#[test]
fn what_is_in_flight_arrives_as_if_it_were_waited_for_at_once() {
    ranks(
        "what_is_in_flight_arrives_as_if_it_were_waited_for_at_once",
        2,
        |group| {
            let own = group.rank() as usize;
            let shards: Vec<Tensor> = (0..5).map(|at| numbers(own, at, &[1000 + at as i64])).collect();
            let wholes: Vec<Tensor> = (0..5).map(|at| numbers(own, at, &[2000 + 2 * at as i64])).collect();
            let gathers: Vec<_> = shards
                .iter()
                .map(|shard| group.start_all_gather(shard).unwrap())
                .collect();
            let scatters: Vec<_> = wholes
                .iter()
                .map(|whole| group.start_reduce_scatter_sum(whole).unwrap())
                .collect();
            // A pending collective that is dropped without a wait does not block the others.
            drop(group.start_all_gather(&shards[0]).unwrap());
            for (shard, pending) in shards.iter().zip(gathers) {
                assert_eq!(pending.wait().unwrap(), group.all_gather(shard).unwrap());
            }
            for (whole, pending) in wholes.iter().zip(scatters) {
                assert_eq!(pending.wait().unwrap(), group.reduce_scatter_sum(whole).unwrap());
            }
        },
    );
}

#[test]
fn an_exchange_whose_other_rank_is_gone_says_so_and_gives_zeros() {
    ranks(
        "an_exchange_whose_other_rank_is_gone_says_so_and_gives_zeros",
        2,
        |group| {
            let exchange = Exchange::new(group.part("line", &[0, 1], true).unwrap()).unwrap();
            let x = numbers(0, 0, &[2, 3]).set_requires_grad(true);
            let y = exchange.all_to_all(&x);
            exchange.check().unwrap();
            // Rank 0 keeps the store.
            if group.rank() == 1 {
                grpo_native::end_now(0);
            }
            y.sum(Kind::Double).backward();
            let error = exchange.check().unwrap_err();
            assert!(error.to_string().contains("rank 0 of 2"), "{error}");
            assert_eq!(x.grad(), x.zeros_like());
            assert_eq!(exchange.all_to_all(&x), x.zeros_like());
        },
    );
}
