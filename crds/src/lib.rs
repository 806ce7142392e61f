//! grpo-crds
