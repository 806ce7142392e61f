//! grpo-native
