//! Attention over a packed tree, and rotary positions of its tokens.
//!
//! Input: `[n, heads, d]` of the `n` unique tokens of a pack, and a list of [`Piece`]s that says who attends to whom.
//! No mask is ever built. On the CPU each piece is one call of libtorch's flash kernel; on a GPU, in bf16, one call
//! takes many pieces. In forward, a query's pieces are merged by their logarithms of the sum of exponentials. In
//! backward, every piece gets the merged output, which makes it exact (the merge of FlashAttention, arXiv 2205.14135,
//! as ring attention uses it, arXiv 2310.01889).

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;

use tch::{Kind, Tensor};

use crate::call::made_tensor;
use crate::generic::is_generic;

unsafe extern "C" {
    fn grpo_tree_attention(
        q: *mut c_void,
        k: *mut c_void,
        v: *mut c_void,
        pieces: *const i64,
        numbers: usize,
        generic: c_int,
        saved: *mut *mut c_void,
        out: *mut *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
    fn grpo_rotate(
        x: *mut c_void,
        cos: *mut c_void,
        sin: *mut c_void,
        generic: c_int,
        out: *mut *mut c_void,
        error: *mut c_char,
        room: usize,
    ) -> c_int;
}

/// A run of queries that attends to a run of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub queries: Range<usize>,
    pub keys: Range<usize>,
    /// Query i sees the keys up to i, and both runs are the same; if false, every query sees every key.
    pub causal: bool,
}

impl Piece {
    /// Pairs of a query and a key that it sees.
    pub fn pairs(&self) -> usize {
        let n = self.queries.len();
        if self.causal {
            n * (n + 1) / 2
        } else {
            n * self.keys.len()
        }
    }
}

/// Why attention could not be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttentionError {
    #[error("piece {at} of the attention's layout: {message}")]
    Layout { at: usize, message: String },
    #[error("attention over shapes {shapes:?}: {message}")]
    Torch { shapes: Vec<Vec<i64>>, message: String },
}

/// Checks that the pieces can be computed over `n` tokens: they are in bounds, and each token is a query of exactly one
/// causal piece, which comes before its other pieces.
pub fn check(pieces: &[Piece], n: usize) -> Result<(), AttentionError> {
    let mut begun = vec![false; n];
    for (at, piece) in pieces.iter().enumerate() {
        let wrong = |message: &str| {
            Err(AttentionError::Layout {
                at,
                message: format!("queries {:?}, keys {:?}: {message}", piece.queries, piece.keys),
            })
        };
        if piece.queries.is_empty() || piece.keys.is_empty() {
            return wrong("a run is empty");
        }
        if piece.queries.end > n || piece.keys.end > n {
            return wrong("a run ends behind the last token");
        }
        if piece.causal && piece.queries != piece.keys {
            return wrong("causal, but the runs are not the same");
        }
        for seen in &mut begun[piece.queries.clone()] {
            if *seen == piece.causal {
                return wrong("a token has no causal piece before its others, or has two");
            }
            *seen = true;
        }
    }
    match begun.iter().position(|seen| !seen) {
        Some(token) => Err(AttentionError::Layout {
            at: pieces.len(),
            message: format!("token {token} is in no causal piece"),
        }),
        None => Ok(()),
    }
}

/// Reuse of a pass's result by a later pass over the same queries, keys and values.
#[derive(Debug, Default)]
pub enum Saving {
    /// The later pass computes again.
    #[default]
    Nothing,
    /// The next pass leaves its result here.
    Next,
    /// The next pass, which may record a graph, takes this result without computing.
    Saved(Saved),
}

thread_local! {
    static COMPUTED: Cell<u64> = const { Cell::new(0) };
}

/// The number of passes through attention that this thread has computed. A pass that took a saved output does not
/// count.
pub fn computed_passes() -> u64 {
    COMPUTED.get()
}

/// Output and logarithms of one pass.
#[derive(Debug)]
pub struct Saved {
    out: Tensor,
    lse: Tensor,
}

/// Attention of `q: [n, heads, d]` over `k, v: [n, groups, d]`, scaled by 1/sqrt(d), to `[n, heads, d]`.
/// Differentiable. `pieces`: as [`check`] requires. Tensors are in fp64, fp32 or bf16; on CUDA only bf16 has a kernel
/// that builds no scores.
pub fn tree(q: &Tensor, k: &Tensor, v: &Tensor, pieces: &[Piece]) -> Result<Tensor, AttentionError> {
    tree_saving(q, k, v, pieces, &mut Saving::Nothing)
}

/// Like [`tree`], and saves the result or takes a saved one.
pub fn tree_saving(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    pieces: &[Piece],
    saving: &mut Saving,
) -> Result<Tensor, AttentionError> {
    let (qs, ks, vs) = (q.size(), k.size(), v.size());
    let failed = |message: String| AttentionError::Torch {
        shapes: vec![qs.clone(), ks.clone(), vs.clone()],
        message,
    };
    let fits = qs.len() == 3 && ks.len() == 3 && ks == vs && qs[0] == ks[0] && qs[2] == ks[2];
    if !fits || ks[1] == 0 || qs[1] % ks[1] != 0 {
        return Err(failed("the shapes do not fit each other".to_owned()));
    }
    let n = qs[0] as usize;
    // Refuses only pieces that reach outside the tensors. Code that makes a layout calls `check` on it.
    if let Some(at) = pieces.iter().position(|p| p.queries.end > n || p.keys.end > n) {
        let message = "a run ends behind the last token".to_owned();
        return Err(AttentionError::Layout { at, message });
    }
    let numbers: Vec<i64> = pieces
        .iter()
        .flat_map(|p| {
            [
                p.queries.start,
                p.queries.len(),
                p.keys.start,
                p.keys.len(),
                usize::from(p.causal),
            ]
            .map(|n| n as i64)
        })
        .collect();
    let (mut q, mut k, mut v) = (q.shallow_clone(), k.shallow_clone(), v.shallow_clone());
    let mut places: [*mut c_void; 2] = match saving {
        Saving::Saved(saved) => [saved.out.as_mut_ptr().cast(), saved.lse.as_mut_ptr().cast()],
        _ => [std::ptr::null_mut(); 2],
    };
    if !matches!(saving, Saving::Saved(_)) {
        COMPUTED.set(COMPUTED.get() + 1);
    }
    let mixed = made_tensor(|out, error, room| {
        let (q, k, v) = (q.as_mut_ptr(), k.as_mut_ptr(), v.as_mut_ptr());
        let saved = match saving {
            Saving::Nothing => std::ptr::null_mut(),
            _ => places.as_mut_ptr(),
        };
        // SAFETY: the tensors, numbers and places outlive the call.
        unsafe {
            let (pieces, n) = (numbers.as_ptr(), numbers.len());
            grpo_tree_attention(
                q.cast(),
                k.cast(),
                v.cast(),
                pieces,
                n,
                is_generic(),
                saved,
                out,
                error,
                room,
            )
        }
    })
    .map_err(failed)?;
    if let Saving::Next = saving {
        // SAFETY: the call that returned a tensor has left two new ones, and only these handles free them.
        let [out, lse] = places.map(|place| unsafe { Tensor::from_ptr(place.cast()) });
        *saving = Saving::Saved(Saved { out, lse });
    }
    Ok(mixed)
}

/// Rotates `x: [n, heads, d]`, pairing dimension i with i + d/2, by angles with these `cos, sin: [n, d / 2]`, in fp32
/// if `x` is in bf16, else in the kind of `x`. Differentiable in `x`.
pub fn rotate(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor, AttentionError> {
    let (xs, cs, ss) = (x.size(), cos.size(), sin.size());
    let kinds = match x.kind() {
        Kind::BFloat16 => cos.kind() == Kind::Float,
        kind => cos.kind() == kind,
    };
    let failed = |message: String| AttentionError::Torch {
        shapes: vec![xs.clone(), cs.clone(), ss.clone()],
        message,
    };
    if xs.len() != 3 || cs != ss || cs != [xs[0], xs[2] / 2] || xs[2] % 2 != 0 || !kinds || sin.kind() != cos.kind() {
        return Err(failed("the shapes or kinds do not fit each other".to_owned()));
    }
    let (mut x, mut cos, mut sin) = (x.shallow_clone(), cos.shallow_clone(), sin.shallow_clone());
    made_tensor(|out, error, room| {
        let (x, cos, sin) = (x.as_mut_ptr(), cos.as_mut_ptr(), sin.as_mut_ptr());
        // SAFETY: as above.
        unsafe { grpo_rotate(x.cast(), cos.cast(), sin.cast(), is_generic(), out, error, room) }
    })
    .map_err(failed)
}
