//! grpo-objective
