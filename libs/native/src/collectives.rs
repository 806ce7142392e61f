//! Exports of `collectives.cc`: the rendezvous store, groups and their collectives, pending collectives, and the
//! exchange of a graph.

use std::ffi::{c_char, c_int, c_void};

/// Begins a collective that reads `input` and fills `output`.
pub(crate) type Begin = unsafe extern "C" fn(
    group: *mut c_void,
    output: *mut c_void,
    input: *mut c_void,
    out: *mut *mut c_void,
    error: *mut c_char,
    room: usize,
) -> c_int;

unsafe extern "C" {
    pub(crate) fn grpo_store_new(
        rank: c_int,
        world: c_int,
        opens: c_int,
        address: *const c_char,
        port: c_int,
        timeout_ms: i64,
        out: *mut *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
    pub(crate) fn grpo_store_free(store: *mut c_void);
    pub(crate) fn grpo_store_part(
        store: *mut c_void,
        name: *const c_char,
        out: *mut *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
    pub(crate) fn grpo_store_set(
        store: *mut c_void,
        key: *const c_char,
        value: *const c_char,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
    pub(crate) fn grpo_store_get(
        store: *mut c_void,
        key: *const c_char,
        found: *mut c_int,
        value: *mut c_char,
        value_room: usize,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
    pub(crate) fn grpo_store_wait(
        store: *mut c_void,
        key: *const c_char,
        timeout_ms: i64,
        error: *mut c_char,
        room: usize,
    ) -> c_int;

    pub(crate) fn grpo_group_new(
        store: *mut c_void,
        rank: c_int,
        world: c_int,
        own_host: *const c_char,
        interface: *const c_char,
        timeout_ms: i64,
        gpu_timeout_ms: i64,
        out: *mut *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
    pub(crate) fn grpo_group_free(group: *mut c_void);
    pub(crate) fn grpo_all_reduce_sum(
        group: *mut c_void,
        tensor: *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
    pub(crate) fn grpo_broadcast(
        group: *mut c_void,
        tensor: *mut c_void,
        root: c_int,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
    pub(crate) fn grpo_barrier(group: *mut c_void, error: *mut c_char, room: usize) -> c_int;

    pub(crate) fn grpo_start_all_gather(
        group: *mut c_void,
        output: *mut c_void,
        input: *mut c_void,
        out: *mut *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
    pub(crate) fn grpo_start_reduce_scatter_sum(
        group: *mut c_void,
        output: *mut c_void,
        input: *mut c_void,
        out: *mut *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
    pub(crate) fn grpo_pending_wait(pending: *mut c_void, error: *mut c_char, room: usize) -> c_int;
    pub(crate) fn grpo_pending_free(pending: *mut c_void);

    pub(crate) fn grpo_exchange_new(
        group: *mut c_void,
        context: *mut c_void,
        note: extern "C" fn(*mut c_void, c_int, *const c_char),
        drop: extern "C" fn(*mut c_void),
        out: *mut *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
    pub(crate) fn grpo_exchange_free(exchange: *mut c_void);
    pub(crate) fn grpo_all_to_all(
        exchange: *mut c_void,
        x: *mut c_void,
        out: *mut *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
}
