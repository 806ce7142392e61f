//! grpo-sandbox-protocol
