//! grpo-engine-protocol
