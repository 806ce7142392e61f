//! grpo-policy
