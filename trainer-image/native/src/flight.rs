//! Collectives that are under way while something else is computed.

use std::ffi::{c_char, c_int, c_void};

use tch::Tensor;

use crate::{CollectiveError, Group, call};

unsafe extern "C" {
    fn grpo_start_all_gather(
        group: *mut c_void,
        output: *mut c_void,
        input: *mut c_void,
        out: *mut *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
    fn grpo_start_reduce_scatter_sum(
        group: *mut c_void,
        output: *mut c_void,
        input: *mut c_void,
        out: *mut *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
    fn grpo_flight_wait(flight: *mut c_void, error: *mut c_char, room: usize) -> c_int;
    fn grpo_flight_free(flight: *mut c_void);
}

/// A tensor that a collective is about to fill. Waits for it when dropped, for what others have sent must arrive somewhere.
#[must_use = "a collective is waited for"]
pub struct Flight<'a> {
    group: &'a Group,
    doing: &'static str,
    raw: Option<*mut c_void>,
    result: Tensor,
}

impl<'a> Flight<'a> {
    /// One that has nothing to wait for.
    pub fn landed(group: &'a Group, result: Tensor) -> Self {
        Self {
            group,
            doing: "nothing",
            raw: None,
            result,
        }
    }

    /// The tensor, when it is whole.
    pub fn wait(mut self) -> Result<Tensor, CollectiveError> {
        self.land()?;
        Ok(self.result.shallow_clone())
    }

    fn land(&mut self) -> Result<(), CollectiveError> {
        let Some(raw) = self.raw.take() else { return Ok(()) };
        // SAFETY: made by one of the two calls above; waited for and freed once.
        let landed = self
            .group
            .progress
            .waiting(self.doing, || call(|e, n| unsafe { grpo_flight_wait(raw, e, n) }));
        unsafe { grpo_flight_free(raw) };
        landed.map_err(|message| self.group.error(self.doing, message))
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        // Whoever drops it has another error to report.
        let _ = self.land();
    }
}

impl Group {
    /// [`Group::all_gather`] that returns at once. `shard` must stay as it is until it is waited for.
    pub fn start_all_gather(&self, shard: &Tensor) -> Result<Flight<'_>, CollectiveError> {
        let n = shard.numel() as i64 * i64::from(self.world);
        self.start("all-gather", shard, n, grpo_start_all_gather)
    }

    /// [`Group::reduce_scatter_sum`] that returns at once. `whole` must stay as it is until it is waited for.
    pub fn start_reduce_scatter_sum(&self, whole: &Tensor) -> Result<Flight<'_>, CollectiveError> {
        let n = whole.numel() as i64 / i64::from(self.world);
        self.start("reduce-scatter", whole, n, grpo_start_reduce_scatter_sum)
    }

    fn start(&self, doing: &'static str, input: &Tensor, n: i64, begin: Begin) -> Result<Flight<'_>, CollectiveError> {
        let mut flight = Flight::landed(self, input.shallow_clone());
        flight.doing = doing;
        let (Some(group), Some(meeting)) = (self.raw, &self.meeting) else {
            return Ok(flight);
        };
        self.contiguous(doing, input)?;
        let mut input = input.shallow_clone();
        flight.result = Tensor::empty([n], (input.kind(), input.device()));
        let (mut raw, output) = (std::ptr::null_mut(), flight.result.as_mut_ptr());
        self.progress.enter(meeting, doing, self.within);
        // SAFETY: all pointers are live for the call, the tensors are contiguous, and C++ holds them until the flight is freed.
        call(|e, n| unsafe { begin(group, output.cast(), input.as_mut_ptr().cast(), &mut raw, e, n) })
            .map_err(|message| self.error(doing, message))?;
        flight.raw = Some(raw);
        Ok(flight)
    }
}

type Begin = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void, *mut *mut c_void, *mut c_char, usize) -> c_int;
