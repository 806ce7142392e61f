//! Pending collectives: they run while something else is computed.

use std::ffi::c_void;

use tch::Tensor;

use crate::call::{call, made};
use crate::collectives::{
    Begin, grpo_pending_free, grpo_pending_wait, grpo_start_all_gather, grpo_start_reduce_scatter_sum,
};
use crate::group::Group;
use crate::rendezvous::CollectiveError;

/// A tensor that a collective will fill. Waits for it when dropped, because data from other ranks must still arrive.
#[must_use = "a collective is waited for"]
pub struct PendingCollective<'a> {
    group: &'a Group,
    doing: &'static str,
    raw: Option<*mut c_void>,
    result: Tensor,
}

impl<'a> PendingCollective<'a> {
    /// A finished collective.
    pub fn ready(group: &'a Group, result: Tensor) -> Self {
        Self {
            group,
            doing: "nothing",
            raw: None,
            result,
        }
    }

    /// Waits for the complete tensor.
    pub fn wait(mut self) -> Result<Tensor, CollectiveError> {
        self.finish()?;
        Ok(self.result.shallow_clone())
    }

    fn finish(&mut self) -> Result<(), CollectiveError> {
        let Some(raw) = self.raw.take() else { return Ok(()) };
        // SAFETY: made by one of the two calls that start one; waited for and freed once.
        let done = self
            .group
            .progress
            .waiting(self.doing, || call(|e, n| unsafe { grpo_pending_wait(raw, e, n) }));
        unsafe { grpo_pending_free(raw) };
        done.map_err(|message| self.group.error(self.doing, message))
    }
}

impl Drop for PendingCollective<'_> {
    fn drop(&mut self) {
        // Ignores the error: a caller that drops it has another error to report.
        let _ = self.finish();
    }
}

impl Group {
    /// Concatenates the ranks' shards: `[n]` on each rank becomes `[world * n]`. For a single rank, the shard itself
    /// without a copy. Returns at once; `shard` must not change before the wait ends.
    pub fn start_all_gather(&self, shard: &Tensor) -> Result<PendingCollective<'_>, CollectiveError> {
        let n = shard.numel() as i64 * i64::from(self.world);
        self.start("all-gather", shard, n, grpo_start_all_gather)
    }

    /// Sums over the ranks and gives each its part: `[world * n]` on each rank, padded by the caller, becomes `[n]`.
    /// For a single rank, `whole` itself without a copy. Returns at once; `whole` must not change before the wait ends.
    pub fn start_reduce_scatter_sum(&self, whole: &Tensor) -> Result<PendingCollective<'_>, CollectiveError> {
        let n = whole.numel() as i64 / i64::from(self.world);
        self.start("reduce-scatter", whole, n, grpo_start_reduce_scatter_sum)
    }

    fn start(
        &self,
        doing: &'static str,
        input: &Tensor,
        n: i64,
        begin: Begin,
    ) -> Result<PendingCollective<'_>, CollectiveError> {
        let mut pending = PendingCollective::ready(self, input.shallow_clone());
        pending.doing = doing;
        let Some(group) = self.raw else { return Ok(pending) };
        self.contiguous(doing, input)?;
        let mut input = input.shallow_clone();
        pending.result = Tensor::empty([n], (input.kind(), input.device()));
        let (input, output) = (input.as_mut_ptr(), pending.result.as_mut_ptr());
        // SAFETY: all pointers are live for the call, the tensors are contiguous, and C++ holds them until the pending
        // is freed.
        pending.raw = self.collective(doing, || {
            made(|out, e, n| unsafe { begin(group, output.cast(), input.cast(), out, e, n) }).map(Some)
        })?;
        Ok(pending)
    }
}
