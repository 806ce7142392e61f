//! grpo-records
