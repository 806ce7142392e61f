//! The vocabulary head on a GPU in bf16: the logits of a chunk of tokens are in one buffer. One pass of our own kernels
//! reads logprobs and entropies from it; another overwrites it with the logits' gradients.

use std::ffi::{c_char, c_int, c_void};

use tch::Tensor;

use crate::call::made_tensor;
use crate::fused::FusedError;
use crate::generic::is_generic;

unsafe extern "C" {
    fn grpo_head_has_kernels(weight: *mut c_void) -> c_int;
    fn grpo_head_scores(
        weight: *mut c_void,
        hidden: *mut c_void,
        targets: *mut c_void,
        temperatures: *mut c_void,
        buffer: *mut c_void,
        out: *mut *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
    fn grpo_head_gradients(
        weight: *mut c_void,
        hidden: *mut c_void,
        targets: *mut c_void,
        temperatures: *mut c_void,
        buffer: *mut c_void,
        scores: *mut c_void,
        by_logprobs: *mut c_void,
        by_entropies: *mut c_void,
        gradient: *mut c_void,
        out: *mut *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
}

/// Whether [`Scored`] supports this weight of a head: in bf16 on a GPU, vocabulary and width multiples of four.
pub fn has_kernels(weight: &Tensor) -> bool {
    let mut weight = weight.shallow_clone();
    // SAFETY: reads a live tensor's type.
    is_generic() == 0 && weight.dim() == 2 && unsafe { grpo_head_has_kernels(weight.as_mut_ptr().cast()) != 0 }
}

/// A chunk of tokens whose logits are in a buffer.
pub struct Scored {
    /// `[n, h]`.
    hidden: Tensor,
    /// `[n]` int64.
    targets: Tensor,
    /// `[n]`.
    temperatures: Tensor,
    buffer: Tensor,
    /// Logprobs, entropies and logarithms of sums, `[3, n]`.
    scores: Tensor,
}

impl Scored {
    /// Scores `hidden: [n, h]` by `weight: [v, h]`, both in bf16, with `targets: [n]` int64 and `temperatures: [n]` in
    /// fp32. Overwrites `buffer: [>= n * v]` in fp32. Records no graph.
    pub fn of(
        weight: &Tensor,
        hidden: &Tensor,
        targets: &Tensor,
        temperatures: &Tensor,
        buffer: &Tensor,
    ) -> Result<Self, FusedError> {
        let all = [weight, hidden, targets, temperatures, buffer];
        let failed = |message: String| FusedError {
            operation: "the vocabulary head",
            shapes: all.iter().map(|x| x.size()).collect(),
            message,
        };
        let n = hidden.size()[0];
        let fits = hidden.size().get(1) == weight.size().get(1)
            && hidden.kind() == weight.kind()
            && targets.size() == [n]
            && temperatures.size() == [n]
            && (buffer.numel() as i64) >= n * weight.size()[0];
        if !fits {
            return Err(failed("the shapes or kinds do not fit each other".to_owned()));
        }
        let [mut weight, hidden, targets, temperatures, buffer] = all.map(Tensor::shallow_clone);
        let [mut x, mut to, mut by, mut logits] =
            [&hidden, &targets, &temperatures, &buffer].map(Tensor::shallow_clone);
        let scores = made_tensor(|out, error, room| {
            let [weight, x, to, by, logits] =
                [&mut weight, &mut x, &mut to, &mut by, &mut logits].map(|tensor| tensor.as_mut_ptr().cast());
            // SAFETY: the tensors outlive the call; their shapes were checked, and the shim checks their kinds.
            unsafe { grpo_head_scores(weight, x, to, by, logits, out, error, room) }
        })
        .map_err(failed)?;
        Ok(Self {
            hidden,
            targets,
            temperatures,
            buffer,
            scores,
        })
    }

    /// Logprobs of the targets, `[n]`.
    pub fn logprobs(&self) -> Tensor {
        self.scores.get(0)
    }

    /// Entropies in nats, `[n]`.
    pub fn entropies(&self) -> Tensor {
        self.scores.get(1)
    }

    /// Takes the gradients of logprobs and entropies (`None`: the loss does not use them), `[n]` in fp32. Adds to the
    /// gradient of the weight, `[v, h]` in fp32 (`None`: the weight is not trained), and returns that of the hidden
    /// states, `[n, h]` in fp32. Overwrites the logits.
    pub fn gradients(
        self,
        weight: &Tensor,
        logprobs: &Tensor,
        entropies: Option<&Tensor>,
        gradient: Option<&mut Tensor>,
    ) -> Result<Tensor, FusedError> {
        let (mut weight, mut logprobs) = (weight.shallow_clone(), logprobs.shallow_clone());
        let shapes = vec![weight.size(), self.hidden.size(), logprobs.size()];
        let n = self.hidden.size()[0];
        let fits = logprobs.size() == [n]
            && entropies.is_none_or(|entropies| entropies.size() == [n])
            && gradient
                .as_ref()
                .is_none_or(|gradient| gradient.size() == weight.size());
        if !fits {
            return Err(FusedError {
                operation: "the vocabulary head's gradients",
                shapes,
                message: "the shapes do not fit each other".to_owned(),
            });
        }
        let mut entropies = entropies.map(Tensor::shallow_clone);
        let mut gradient = gradient.map(|gradient| gradient.shallow_clone());
        let pointer = |tensor: &mut Option<Tensor>| match tensor {
            Some(tensor) => tensor.as_mut_ptr().cast(),
            None => std::ptr::null_mut(),
        };
        let Self {
            mut hidden,
            mut targets,
            mut temperatures,
            mut buffer,
            mut scores,
        } = self;
        made_tensor(|out, error, room| {
            let (entropies, gradient) = (pointer(&mut entropies), pointer(&mut gradient));
            let [weight, hidden, targets, temperatures, buffer, scores, logprobs] = [
                &mut weight,
                &mut hidden,
                &mut targets,
                &mut temperatures,
                &mut buffer,
                &mut scores,
                &mut logprobs,
            ]
            .map(|tensor| tensor.as_mut_ptr().cast());
            // SAFETY: the tensors outlive the call; they are those of the scores.
            unsafe {
                grpo_head_gradients(
                    weight,
                    hidden,
                    targets,
                    temperatures,
                    buffer,
                    scores,
                    logprobs,
                    entropies,
                    gradient,
                    out,
                    error,
                    room,
                )
            }
        })
        .map_err(|message| FusedError {
            operation: "the vocabulary head's gradients",
            shapes,
            message,
        })
    }
}
