//! The page's files, built from `operator/viewer` by `make viewer`. They are in the repository, so that building the
//! plugin needs no Node.js; a test compares their stamp with the sources.

pub const PAGE: &str = include_str!("../../../viewer/dist/index.html");
pub const SCRIPT: &str = include_str!("../../../viewer/dist/app.js");
pub const STYLE: &str = include_str!("../../../viewer/dist/app.css");

#[cfg(test)]
mod tests;
