//! No code: see `Cargo.toml`, which gives every dependency one set of features.
