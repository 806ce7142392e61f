//! Checks that a report agrees with the store that it was made from.

use grpo_verify::{Check, claims::close};

use crate::report::Report;

/// Compares the report's numbers with newly computed ones.
pub fn check(claimed: &Report, found: &Report) -> Check {
    let mut check = Check::new("the report's numbers are the ones computed now");
    let rates = |r: &Report| [r.train.before, r.train.after, r.heldout.before, r.heldout.after];
    for (name, (c, f)) in ["train.before", "train.after", "heldout.before", "heldout.after"]
        .iter()
        .zip(rates(claimed).into_iter().zip(rates(found)))
    {
        check.expect(close(c, f), || format!("{name}: {c:?} is claimed, {f:?} was found"));
    }
    check.expect(claimed.void == found.void, || {
        format!("void: {} is claimed, {} was found", claimed.void, found.void)
    });
    check.expect(claimed.seed == found.seed, || {
        format!("seed: {} is claimed, {} was found", claimed.seed, found.seed)
    });
    check.expect(claimed.iterations.len() == found.iterations.len(), || {
        format!(
            "{} iterations are claimed, {} were found",
            claimed.iterations.len(),
            found.iterations.len()
        )
    });
    for (c, f) in claimed.iterations.iter().zip(&found.iterations) {
        let same = (c.iteration, c.episodes, c.resolved, c.void) == (f.iteration, f.episodes, f.resolved, f.void);
        check.expect(same && close(c.rate, f.rate), || {
            format!("iteration {}: claimed {c:?}, found {f:?}", f.iteration)
        });
    }
    check
}

#[cfg(test)]
mod tests;
