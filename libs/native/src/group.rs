//! The group of ranks that train together, and its collectives.

use std::ffi::{CString, c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use tch::Tensor;

use crate::call::{call, made};
use crate::collectives::{grpo_all_reduce_sum, grpo_barrier, grpo_broadcast, grpo_group_free, grpo_group_new};
use crate::gpu_wait;
use crate::rendezvous::{CollectiveError, Rendezvous};
use crate::rendezvous_store::{Progress, RendezvousStore, Watch};

/// A rank that has joined the rendezvous.
pub struct Arrived {
    at: Rendezvous,
    store: Option<RendezvousStore>,
    gpu_deadline: Duration,
}

impl Arrived {
    /// Waits until rank 0 has opened the store.
    pub fn reach(at: &Rendezvous) -> Result<Self, CollectiveError> {
        let store = (at.world > 1).then(|| RendezvousStore::reach(at)).transpose()?;
        Ok(Self {
            gpu_deadline: at.timeout,
            at: at.clone(),
            store,
        })
    }

    /// Deadline of a collective of tensors on GPUs, from the call to its end on the GPU; after it NCCL ends the
    /// process. Default: [`Rendezvous::timeout`].
    #[must_use]
    pub fn with_gpu_deadline(self, gpu_deadline: Duration) -> Self {
        Self { gpu_deadline, ..self }
    }

    /// Lets ranks continue that wait in [`Arrived::wait_for_signal`] for a signal of this name, or will.
    pub fn signal(&self, name: &str) -> Result<(), CollectiveError> {
        let sent = self.store.as_ref().map_or(Ok(()), |store| store.signal(name));
        sent.map_err(|message| self.at.error("signalling the other ranks", message))
    }

    /// Waits until a rank gives the signal of this name, for as long as it takes. Fails when rank 0 is gone. A rank
    /// without others does not wait.
    pub fn wait_for_signal(&self, name: &str) -> Result<(), CollectiveError> {
        let heard = self.store.as_ref().map_or(Ok(()), |store| store.wait_for_signal(name));
        heard.map_err(|message| self.at.error("waiting for a signal of rank 0", message))
    }

    /// Joins the group; returns when every rank has joined. `beside` gets a [`Watch`] for another thread as soon as all
    /// ranks have arrived.
    pub fn join(self, beside: impl FnOnce(Watch)) -> Result<Group, CollectiveError> {
        let at = self.at;
        let mut group = Group {
            rank: at.rank,
            world: at.world,
            gpu_deadline: self.gpu_deadline,
            at,
            raw: None,
            store: None,
            asked: None,
            progress: Arc::default(),
            within: false,
        };
        if let Some(store) = self.store {
            store.wait_for_all(&group.at)?;
            group.asked = Some(Arc::new(RendezvousStore::reach_again(&group.at)?));
            group.store = Some(Arc::new(store));
            gpu_wait::counts_for(&group.progress);
        }
        beside(group.watch());
        if let Some(store) = group.store.clone() {
            group.raw = Some(group.connect(&store)?);
        }
        Ok(group)
    }
}

/// The ranks that train together.
pub struct Group {
    rank: u32,
    pub(crate) world: u32,
    /// The rendezvous of all ranks, of this group and others.
    at: Rendezvous,
    gpu_deadline: Duration,
    pub(crate) raw: Option<*mut c_void>,
    pub(crate) store: Option<Arc<RendezvousStore>>,
    asked: Option<Arc<RendezvousStore>>,
    pub(crate) progress: Arc<Progress>,
    /// Whether ranks outside of this group may enter a different number of collectives in the same time.
    within: bool,
}

// SAFETY: c10d's process groups may be used from any thread; calls on one group are made by one thread at a time
// because each takes `&self` from the owner's single training thread, and c10d itself locks.
unsafe impl Send for Group {}

impl Group {
    /// One rank, no network.
    pub fn alone() -> Self {
        Self {
            rank: 0,
            world: 1,
            gpu_deadline: Rendezvous::alone().timeout,
            at: Rendezvous::alone(),
            raw: None,
            store: None,
            asked: None,
            progress: Arc::default(),
            within: false,
        }
    }

    /// Joins the group; returns when every rank has joined.
    pub fn join(at: &Rendezvous) -> Result<Self, CollectiveError> {
        Arrived::reach(at)?.join(|_| ())
    }

    /// A group of the ranks `members`, in that order; this rank is one of them. All ranks make the same calls in the
    /// same order, each with its own group's members; groups made by the same call have no rank in common. `within`:
    /// other groups' ranks may enter more or fewer of its collectives than this one does.
    pub fn part(&self, name: &str, members: &[u32], within: bool) -> Result<Self, CollectiveError> {
        let joining = "joining a part of the group";
        let place = members.iter().position(|member| *member == self.at.rank);
        let Some((rank, first)) = place.zip(members.first()) else {
            return Err(self.error(joining, format!("{name}: this rank is not in {members:?}")));
        };
        let mut group = Self {
            rank: rank as u32,
            world: members.len() as u32,
            at: self.at.clone(),
            gpu_deadline: self.gpu_deadline,
            raw: None,
            store: None,
            asked: self.asked.clone(),
            progress: self.progress.clone(),
            within,
        };
        if let (Some(store), true) = (&self.store, members.len() > 1) {
            group.store = Some(store.clone());
            let own = store
                .part(&format!("grpo/{name}/{first}"), group.rank, group.world)
                .map_err(|message| group.error(joining, message))?;
            group.raw = Some(group.connect(&own)?);
        }
        Ok(group)
    }

    /// Connects to the other ranks of this group through `store`.
    fn connect(&self, store: &RendezvousStore) -> Result<*mut c_void, CollectiveError> {
        let joining = "joining the group";
        let text = |text: &str| CString::new(text).map_err(|error| self.error(joining, error.to_string()));
        let (own_host, interface) = (text(&self.at.own_host)?, text(&self.at.interface)?);
        self.collective(joining, || {
            made(|out, error, room| {
                // SAFETY: store and strings outlive the call.
                unsafe {
                    grpo_group_new(
                        store.raw(),
                        self.rank as c_int,
                        self.world as c_int,
                        own_host.as_ptr(),
                        interface.as_ptr(),
                        self.at.timeout.as_millis() as i64,
                        self.gpu_deadline.as_millis() as i64,
                        out,
                        error,
                        room,
                    )
                }
            })
        })
    }

    /// A view of this group for another thread.
    pub fn watch(&self) -> Watch {
        Watch {
            store: self.store.clone(),
            asked: self.asked.clone(),
            progress: self.progress.clone(),
        }
    }

    /// See [`Watch::busy`].
    pub fn busy<T>(&self, with: &str, work: impl FnOnce() -> T) -> T {
        self.watch().busy(with, work)
    }

    pub fn rank(&self) -> u32 {
        self.rank
    }

    pub fn world(&self) -> u32 {
        self.world
    }

    /// Sums `tensor` over the ranks, in place.
    pub fn all_reduce_sum(&self, tensor: &mut Tensor) -> Result<(), CollectiveError> {
        let Some(raw) = self.raw else { return Ok(()) };
        self.contiguous("all-reduce", tensor)?;
        // SAFETY: both pointers are live for the call, the tensor is contiguous.
        let sum = || call(|e, n| unsafe { grpo_all_reduce_sum(raw, tensor.as_mut_ptr().cast(), e, n) });
        self.collective("all-reduce", sum)
    }

    /// Copies `tensor` from `root` to every rank, in place.
    pub fn broadcast(&self, tensor: &mut Tensor, root: u32) -> Result<(), CollectiveError> {
        let Some(raw) = self.raw else { return Ok(()) };
        self.contiguous("broadcast", tensor)?;
        // SAFETY: as above.
        let copy = || call(|e, n| unsafe { grpo_broadcast(raw, tensor.as_mut_ptr().cast(), root as c_int, e, n) });
        self.collective("broadcast", copy)
    }

    /// [`Group::start_all_gather`], and waits for it.
    pub fn all_gather(&self, shard: &Tensor) -> Result<Tensor, CollectiveError> {
        self.start_all_gather(shard)?.wait()
    }

    /// [`Group::start_reduce_scatter_sum`], and waits for it.
    pub fn reduce_scatter_sum(&self, whole: &Tensor) -> Result<Tensor, CollectiveError> {
        self.start_reduce_scatter_sum(whole)?.wait()
    }

    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<(), CollectiveError> {
        let Some(raw) = self.raw else { return Ok(()) };
        // SAFETY: the group is live.
        self.collective("barrier", || call(|e, n| unsafe { grpo_barrier(raw, e, n) }))
    }

    pub(crate) fn contiguous(&self, doing: &'static str, tensor: &Tensor) -> Result<(), CollectiveError> {
        match tensor.is_contiguous() {
            true => Ok(()),
            false => Err(self.error(doing, "the tensor is not contiguous".to_owned())),
        }
    }

    /// Counts a call as one of this rank's collectives, and reports the rank in it.
    pub(crate) fn collective<T>(
        &self,
        doing: &'static str,
        work: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, CollectiveError> {
        let done = match &self.store {
            Some(store) => self.progress.during(store, doing, self.within, work),
            None => work(),
        };
        done.map_err(|message| self.error(doing, message))
    }

    pub(crate) fn error(&self, doing: &'static str, message: String) -> CollectiveError {
        CollectiveError {
            doing,
            rank: self.rank,
            world: self.world,
            message,
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            // SAFETY: made by `grpo_group_new`, freed once.
            unsafe { grpo_group_free(raw) }
        }
    }
}
