//! The crate's operations against libtorch's single ones, and collectives over processes.
//!
//! libtorch's generator is one for the process, and tests draw from it side by side: none may depend on which numbers
//! it draws. Ranks of [`exchange`] are processes of their own, each running one test of this binary.

#![allow(clippy::unwrap_used)]

mod attention;
mod dropout;
mod exchange;
mod linear;
