//! Benchmarks of our processes beside their peers: [`driver_bench`], [`hub_bench`], [`operator_bench`],
//! [`sandbox_bench`] and [`viewer_bench`]. Their programs write rows to `bench/results`; short variants of two of them
//! are end-to-end tests. The trainer's bench is a crate of its own (`bench/trainer`), because it links libtorch.

pub mod driver_bench;
pub mod hub_bench;
pub mod operator_bench;
pub mod sandbox_bench;
pub mod viewer_bench;
