//! The objective, as formulas: rewards to advantages ([`advantage`]), tokens to a loss ([`loss`]). No tensors, no I/O.
//!
//! The trainer computes the same loss on tensors and is tested against this; anything that recomputes a run from its store uses this
//! directly, so what is reported and what was trained on cannot drift apart.

pub mod advantage;
pub mod loss;

pub use advantage::{GroupAdvantages, advantages};
pub use loss::{TokenLoss, token_loss, token_weights};
