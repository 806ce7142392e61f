//! grpo-e2e
