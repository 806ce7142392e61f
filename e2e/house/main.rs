//! The rules of the house, as tests over the source tree: dependencies between crates, no circles of files, file sizes,
//! banned names, width of comments, phrases that read as translated, one term for one thing.
//!
//! Counts are ratchets: a test fails above its limit and clearly below it, so that every improvement lowers the limit.
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
