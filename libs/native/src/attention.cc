// Attention over a packed tree, and the optimizer's step and norm: functions that make many libtorch calls for one call
// from Rust. Exceptions are caught and returned as text (call.h).
//
// A tree's attention is a list of pieces: a run of queries against a run of keys, causal or full. On the CPU every
// piece is one call of libtorch's flash kernel, which also returns the logarithm of the sum of exponentials; the pieces
// of one query are merged by these logarithms (as in flash decoding and ring attention). The gradient needs no merge:
// given the *merged* output and logarithm, the kernel's backward of each piece is that piece's part of the gradient,
// because p = exp(s - lse) and rowsum(dO * O) are then those of the whole row.
//
// A piece's kernel is libtorch's for the tensors' device; merging and rotating are loops on the CPU and ATen's
// operations elsewhere. With `generic`, ATen's operations compute on the CPU too, with a plain kernel, so that tests
// there cover everything but a device's own kernel. Sums over pieces, logarithms and rotations are in fp32 if tensors
// are in bf16.
//
// In bf16 on a GPU one call computes many pieces: flash.cc.

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "call.h"
#include "flash.h"
#include "kernels.h"

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// [n, heads, d] of a run of tokens as [groups, heads / groups, run, d]: a group shares its keys and values.
Tensor grouped(const Tensor& x, int64_t begin, int64_t count, int64_t groups) {
  return x.narrow(0, begin, count).view({count, groups, x.size(1) / groups, x.size(2)}).permute({1, 2, 0, 3});
}

// A run of keys or values as [groups, heads, run, d]: every head of the group sees it without a copy.
Tensor shared(const Tensor& x, int64_t begin, int64_t count, int64_t heads) {
  return x.narrow(0, begin, count).permute({1, 0, 2}).unsqueeze(1).expand({x.size(1), heads, count, x.size(2)});
}

double scale_of(const Tensor& q) { return 1.0 / std::sqrt(static_cast<double>(q.size(2))); }

// Scores of a piece, written out: [groups, in_group, queries, keys].
Tensor scores_of(const Tensor& q, const Tensor& k, const Piece& p) {
  const int64_t groups = k.size(1), in_group = q.size(1) / groups;
  const at::ScalarType sums = at::toOpMathType(q.scalar_type());
  const Tensor scores = at::matmul(grouped(q, p.query, p.queries, groups).to(sums),
                                   shared(k, p.key, p.keys, in_group).to(sums).transpose(-1, -2)) * scale_of(q);
  if (!p.causal) return scores;
  const Tensor later = at::ones({p.queries, p.keys}, scores.options().dtype(at::kBool)).triu(1);
  return scores.masked_fill(later, -std::numeric_limits<double>::infinity());
}

// The type of sums over values of this type.
at::ScalarType sums_of(const Tensor& x) { return at::toOpMathType(x.scalar_type()); }

// Whether ATen's operations are used in place of the loops below.
bool by_operations(const Tensor& x, bool generic) { return generic || !x.device().is_cpu(); }

// Writes a query's first piece, output and logarithm, into the result; merges later pieces into it.
template <typename T, typename S>
void merge(const Tensor& part, const Tensor& part_lse, Tensor& out, Tensor& lse, int64_t begin, bool first) {
  const int64_t groups = part.size(0), in_group = part.size(1), count = part.size(2), d = part.size(3);
  const int64_t heads = groups * in_group;
  const T* from = part.const_data_ptr<T>();
  const S* from_lse = part_lse.const_data_ptr<S>();
  S* into = out.mutable_data_ptr<S>();
  S* into_lse = lse.mutable_data_ptr<S>();
  const auto s = part.strides();
  const auto l = part_lse.strides();
  at::parallel_for(0, count, 64, [&](int64_t from_row, int64_t to_row) {
    for (int64_t row = from_row; row < to_row; ++row) {
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t g = head / in_group, h = head % in_group;
        const T* x = from + g * s[0] + h * s[1] + row * s[2];
        const S b = from_lse[g * l[0] + h * l[1] + row * l[2]];
        S* y = into + ((begin + row) * heads + head) * d;
        S& a = into_lse[(begin + row) * heads + head];
        if (first) {
          for (int64_t i = 0; i < d; ++i) y[i] = static_cast<S>(x[i]);
          a = b;
          continue;
        }
        const S top = std::max(a, b);
        const S ea = std::exp(a - top), eb = std::exp(b - top), sum = ea + eb;
        const S wa = ea / sum, wb = eb / sum;
        for (int64_t i = 0; i < d; ++i) y[i] = wa * y[i] + wb * static_cast<S>(x[i]);
        a = top + std::log(sum);
      }
    }
  });
}

// `merge` by operations on tensors.
void merge_by_operations(const Tensor& part, const Tensor& part_lse, Tensor& out, Tensor& lse, const Piece& p) {
  const int64_t groups = part.size(0);
  Tensor y = grouped(out, p.query, p.queries, groups);
  Tensor a = lse.narrow(0, p.query, p.queries).view({p.queries, groups, part.size(1)}).permute({1, 2, 0});
  if (p.causal) {
    y.copy_(part);
    a.copy_(part_lse);
    return;
  }
  const Tensor both = at::logaddexp(a, part_lse);
  y.mul_(at::exp(a - both).unsqueeze(-1)).add_(part * at::exp(part_lse - both).unsqueeze(-1));
  a.copy_(both);
}

// One piece's output [groups, in_group, queries, d] and logarithm [groups, in_group, queries] of tensors whose groups
// share keys and values.
std::pair<Tensor, Tensor> piece_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Piece& p, bool generic) {
  const int64_t groups = k.size(1), in_group = q.size(1) / groups;
  if (!by_operations(q, generic)) {
    const auto answer = at::_scaled_dot_product_flash_attention_for_cpu(
        grouped(q, p.query, p.queries, groups), shared(k, p.key, p.keys, in_group), shared(v, p.key, p.keys, in_group), 0.0,
        p.causal);
    return {std::get<0>(answer), std::get<1>(answer)};
  }
  const Tensor scores = scores_of(q, k, p);
  const Tensor lse = scores.logsumexp(-1);
  const Tensor chances = at::exp(scores - lse.unsqueeze(-1));
  return {at::matmul(chances, shared(v, p.key, p.keys, in_group).to(chances.scalar_type())), lse};
}

// A piece's part of the gradients: of q as [groups, in_group, queries, d], of k and v as [keys, groups, d]. `out`,
// `lse`: merged.
std::tuple<Tensor, Tensor, Tensor> piece_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                                  const Tensor& out, const Tensor& lse, const Piece& p, bool generic) {
  const int64_t groups = k.size(1), in_group = q.size(1) / groups;
  const at::ScalarType sums = sums_of(q);
  const Tensor part_lse = lse.narrow(0, p.query, p.queries).view({p.queries, groups, in_group}).permute({1, 2, 0});
  // Sums over the heads that share a key.
  const auto together = [&](const Tensor& x) { return x.sum(at::IntArrayRef{1}, false, sums).permute({1, 0, 2}); };
  if (!by_operations(q, generic)) {
    const auto answer = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        grouped(dout, p.query, p.queries, groups), grouped(q, p.query, p.queries, groups),
        shared(k, p.key, p.keys, in_group), shared(v, p.key, p.keys, in_group), grouped(out, p.query, p.queries, groups),
        part_lse, 0.0, p.causal);
    return {std::get<0>(answer), together(std::get<1>(answer)), together(std::get<2>(answer))};
  }
  const Tensor chances = at::exp(scores_of(q, k, p) - part_lse.unsqueeze(-1));
  const auto in_sums = [&](const Tensor& x) { return grouped(x, p.query, p.queries, groups).to(sums); };
  const Tensor above = in_sums(dout), queries = in_sums(q);
  const Tensor keys = shared(k, p.key, p.keys, in_group).to(sums), values = shared(v, p.key, p.keys, in_group).to(sums);
  const Tensor of_chances = at::matmul(above, values.transpose(-1, -2));
  const Tensor row = (above * in_sums(out)).sum(-1, true);
  const Tensor of_scores = chances * (of_chances - row) * scale_of(q);
  return {at::matmul(of_scores, keys), together(at::matmul(of_scores.transpose(-1, -2), queries)),
          together(at::matmul(chances.transpose(-1, -2), above))};
}

// The output, [n, heads, d], and the logarithms for backward, in a shape that depends on the implementation.
struct Attended {
  Tensor out, lse;
};

Attended attended(const Tensor& q, const Tensor& k, const Tensor& v, const std::vector<int64_t>& flat, bool generic) {
  if (!generic && flash::computes(q)) {
    const auto [out, lse] = flash::forward(q, k, v, flat);
    return {out, lse};
  }
  const auto sums = q.options().dtype(sums_of(q));
  Tensor out = at::empty({q.size(0), q.size(1), q.size(2)}, sums);
  Tensor lse = at::empty({q.size(0), q.size(1)}, sums);
  for (const Piece& p : pieces_of(flat)) {
    const auto [part, part_lse] = piece_forward(q, k, v, p, generic);
    if (by_operations(q, generic)) {
      merge_by_operations(part, part_lse, out, lse, p);
      continue;
    }
    AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, q.scalar_type(), "merge", [&, &part = part, &part_lse = part_lse] {
      merge<scalar_t, at::opmath_type<scalar_t>>(part, part_lse, out, lse, p.query, p.causal);
    });
  }
  return {out.to(q.scalar_type()), lse};
}

struct TreeAttention : public torch::autograd::Function<TreeAttention> {
  // Takes the result from `saved` if it is there; otherwise computes it and leaves it in `saved`, unless `saved` is
  // null.
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const std::vector<int64_t>& flat, bool generic, Attended* saved) {
    ctx->saved_data["pieces"] = flat;
    ctx->saved_data["generic"] = generic;
    const bool there = saved != nullptr && saved->out.defined();
    const Attended found = there ? *saved : attended(q, k, v, flat, generic);
    if (saved != nullptr && !there) *saved = found;
    // A separate tensor: autograd marks it as this function's output.
    const Tensor out = found.out.detach();
    ctx->save_for_backward({q, k, v, out, found.lse});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& above) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &lse = saved[4];
    const bool generic = ctx->saved_data["generic"].toBool();
    const Tensor dout = above[0].contiguous();
    if (!generic && flash::computes(q)) {
      const auto [dq, dk, dv] = flash::backward(dout, q, k, v, out, lse, ctx->saved_data["pieces"].toIntVector());
      return {dq, dk, dv, Variable(), Variable(), Variable()};
    }
    const auto sums = q.options().dtype(sums_of(q));
    Tensor dq = at::empty(q.sizes(), sums), dk = at::zeros(k.sizes(), sums), dv = at::zeros(v.sizes(), sums);
    for (const Piece& p : pieces_of(ctx->saved_data["pieces"].toIntVector())) {
      const auto [part_q, part_k, part_v] = piece_backward(dout, q, k, v, out, lse, p, generic);
      Tensor into = grouped(dq, p.query, p.queries, k.size(1));
      if (p.causal) {
        into.copy_(part_q);
      } else {
        into.add_(part_q);
      }
      dk.narrow(0, p.key, p.keys).add_(part_k);
      dv.narrow(0, p.key, p.keys).add_(part_v);
    }
    const auto kind = q.scalar_type();
    return {dq.to(kind), dk.to(kind), dv.to(kind), Variable(), Variable(), Variable()};
  }
};

// Rotates pairs (i, i + d/2) of every head by its token's angle; the gradient is the rotation by the negative angle.
template <typename T, typename S>
void rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, Tensor& y, S sign) {
  const int64_t n = x.size(0), heads = x.size(1), half = x.size(2) / 2;
  const T* from = x.const_data_ptr<T>();
  const S *c = cos.const_data_ptr<S>(), *s = sin.const_data_ptr<S>();
  T* into = y.mutable_data_ptr<T>();
  at::parallel_for(0, n, 32, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const S *__restrict cr = c + row * half, *__restrict sr = s + row * half;
      for (int64_t head = 0; head < heads; ++head) {
        const T* __restrict a = from + (row * heads + head) * 2 * half;
        T* __restrict b = into + (row * heads + head) * 2 * half;
        for (int64_t i = 0; i < half; ++i) {
          const S sine = sign * sr[i], low = static_cast<S>(a[i]), high = static_cast<S>(a[half + i]);
          b[i] = low * cr[i] - high * sine;
          b[half + i] = high * cr[i] + low * sine;
        }
      }
    }
  });
}

Tensor rotated(const Tensor& x, const Tensor& cos, const Tensor& sin, int sign, bool generic) {
  if (!generic && kernels::compute(x) && x.size(2) % 8 == 0) {
    const Tensor from = x.contiguous(), y = at::empty_like(from);
    const int64_t n = x.size(0), heads = x.size(1), half = x.size(2) / 2;
    kernels::launch("rotate", kernels::blocks_for(n * heads * half / 4, kernels::THREADS), kernels::THREADS, kernels::in(from),
                    kernels::in<float>(cos), kernels::in<float>(sin), kernels::out(y), static_cast<long long>(n), static_cast<int>(heads),
                    static_cast<int>(half), static_cast<float>(sign));
    return y;
  }
  if (by_operations(x, generic)) {
    const int64_t half = x.size(2) / 2;
    const Tensor low = x.narrow(2, 0, half), high = x.narrow(2, half, half);
    const Tensor c = cos.unsqueeze(1), s = sin.unsqueeze(1) * sign;
    return at::cat({low * c - high * s, high * c + low * s}, 2).to(x.scalar_type());
  }
  const Tensor from = x.contiguous();
  Tensor y = at::empty_like(from);
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, x.scalar_type(), "rotate", [&] {
    rotate<scalar_t, at::opmath_type<scalar_t>>(from, cos, sin, y, sign);
  });
  return y;
}

struct Rotation : public torch::autograd::Function<Rotation> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& cos, const Tensor& sin, bool generic) {
    ctx->saved_data["generic"] = generic;
    ctx->save_for_backward({cos, sin});
    return rotated(x, cos, sin, 1, generic);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& above) {
    const auto saved = ctx->get_saved_variables();
    return {rotated(above[0], saved[0], saved[1], -1, ctx->saved_data["generic"].toBool()), Variable(), Variable(),
            Variable()};
  }
};

}  // namespace

extern "C" {

// q: [n, heads, d]; k, v: [n, groups, d]; pieces: five numbers each (first query, queries, first key, keys, causal).
// The result is [n, heads, d]. saved: null, or two places for tensors, output and logarithms. Null places receive the
// computed tensors; other places give the result without computation.
int grpo_tree_attention(void* q, void* k, void* v, const int64_t* pieces, size_t numbers, int generic, void** saved, void** out,
                        char* error, size_t room) {
  return guarded(error, room, [&] {
    const std::vector<int64_t> flat(pieces, pieces + numbers);
    const bool there = saved != nullptr && saved[0] != nullptr;
    Attended kept;
    if (there) kept = {of(saved[0]), of(saved[1])};
    *out = new Tensor(TreeAttention::apply(of(q).contiguous(), of(k).contiguous(), of(v).contiguous(), flat, generic != 0,
                                           saved == nullptr ? nullptr : &kept));
    if (saved != nullptr && !there) {
      saved[0] = new Tensor(kept.out.detach());
      saved[1] = new Tensor(kept.lse.detach());
    }
  });
}

// x: [n, heads, d]; cos, sin: [n, d / 2], in fp32 where x is in bf16.
int grpo_rotate(void* x, void* cos, void* sin, int generic, void** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    *out = new Tensor(Rotation::apply(of(x), of(cos).contiguous(), of(sin).contiguous(), generic != 0));
  });
}

// One AdamW step in place. `steps`: steps taken, including this one.
int grpo_adamw(void* values, void* gradient, void* first, void* second, double steps, double rate, double beta1,
               double beta2, double decay, double epsilon, char* error, size_t room) {
  return guarded(error, room, [&] {
    at::NoGradGuard no_grad;
    const Tensor count = at::full({}, steps, at::TensorOptions().dtype(at::kFloat).device(of(values).device()));
    at::_fused_adamw_({of(values)}, {of(gradient)}, {of(first)}, {of(second)}, {}, {count}, rate, beta1, beta2, decay,
                      epsilon, false, false);
  });
}

// The sum of the squares of x, any shape, in double precision, [1].
int grpo_square_sum(void* x, void** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    const at::NoGradGuard no_grad;
    const Tensor values = of(x).contiguous().view({-1});
    const int64_t n = values.numel();
    if (values.device().is_cuda() && values.scalar_type() == at::kFloat) {
      // The number of parts is the same on every GPU, and so are the bits.
      constexpr int64_t PARTS = 1024;
      const Tensor parts = at::empty({PARTS}, values.options().dtype(at::kDouble));
      kernels::launch("squares", PARTS, kernels::THREADS, kernels::in<float>(values), kernels::out<double>(parts), static_cast<long long>(n));
      *out = new Tensor(parts.sum().view({1}));
      return;
    }
    // In pieces: a large tensor in double precision would be twice the tensor.
    constexpr int64_t PIECE = 1 << 18;
    Tensor sum = at::zeros({1}, values.options().dtype(at::kDouble));
    for (const Tensor& part : values.split(PIECE)) sum += part.to(at::kDouble).square().sum();
    *out = new Tensor(sum);
  });
}

}  // extern "C"
