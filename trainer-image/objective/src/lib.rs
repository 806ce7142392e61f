//! The objective, as formulas: rewards to advantages ([`advantage`]), logprobs to a loss and its gradient
//! ([`objective`], made of [`ratio`], [`loss`], [`kl`] and [`correction`]), steps to a learning rate ([`rate`]), and
//! pseudorandom draws ([`mixing`]). No tensors, no I/O; double precision.
//!
//! The trainer calls this for every token, and so does any program that recomputes a run from its store: reported and
//! trained values cannot drift apart. `docs/src/objective.md` gives every formula with its source.

pub mod advantage;
pub mod correction;
pub mod kl;
pub mod loss;
pub mod mixing;
pub mod objective;
pub mod rate;
pub mod ratio;

pub use advantage::{GroupAdvantages, advantages};
pub use loss::{TokenLoss, batch_weights, token_loss, token_weights};
pub use objective::{Objective, Sequence, Token, objective};
