//! The rules of the house, as tests over the source tree: which crate may use which, no circles of files, file sizes,
//! names that are gone, width of comments, phrases that read as translated, one term for one thing.
//!
//! Counts are ratchets: a test fails above its limit, and below it too, so that every improvement lowers the limit.
//! CONTRIBUTING.md explains the rules.

#![allow(clippy::unwrap_used)]

mod ci;
mod circles;
mod crate_graph;
mod features;
mod glossary;
mod modules;
mod names;
mod paths;
mod sizes;
mod text;
mod tree;
mod workflows;
