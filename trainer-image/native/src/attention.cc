// Attention over a packed tree, and the optimizer's step: what one call from Rust does with many of libtorch's. Exceptions are caught and
// returned as text (call.h).
//
// A tree's attention is a list of pieces: a run of queries against a run of keys, causal or whole. Every piece is one call of libtorch's
// flash kernel, which answers its logarithm of the sum of exponentials; pieces of one query are merged by those (as in flash decoding and
// ring attention). The gradient needs no merge: given the *merged* output and logarithm, the kernel's backward of each piece is that piece's
// part of the gradient, because p = exp(s - lse) and rowsum(dO * O) are then those of the whole row.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "call.h"

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

struct Piece {
  int64_t query, queries, key, keys;
  bool causal;
};

std::vector<Piece> pieces_of(const std::vector<int64_t>& flat) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i + 5 <= flat.size(); i += 5) {
    pieces.push_back({flat[i], flat[i + 1], flat[i + 2], flat[i + 3], flat[i + 4] != 0});
  }
  return pieces;
}

// [n, heads, d] of a run of tokens as [groups, heads / groups, run, d]: a group shares its keys and values.
Tensor grouped(const Tensor& x, int64_t begin, int64_t count, int64_t groups) {
  return x.narrow(0, begin, count).view({count, groups, x.size(1) / groups, x.size(2)}).permute({1, 2, 0, 3});
}

// The same of keys or values, seen by every head of the group without a copy.
Tensor shared(const Tensor& x, int64_t begin, int64_t count, int64_t heads) {
  return x.narrow(0, begin, count).permute({1, 0, 2}).unsqueeze(1).expand({x.size(1), heads, count, x.size(2)});
}

// Writes a piece's output and logarithm into the whole's, or merges them where there is already one.
template <typename T>
void merge(const Tensor& part, const Tensor& part_lse, Tensor& out, Tensor& lse, int64_t begin, bool first) {
  const int64_t groups = part.size(0), in_group = part.size(1), count = part.size(2), d = part.size(3);
  const int64_t heads = groups * in_group;
  const T* from = part.const_data_ptr<T>();
  const T* from_lse = part_lse.const_data_ptr<T>();
  T* into = out.mutable_data_ptr<T>();
  T* into_lse = lse.mutable_data_ptr<T>();
  const auto s = part.strides();
  const auto l = part_lse.strides();
  at::parallel_for(0, count, 64, [&](int64_t from_row, int64_t to_row) {
    for (int64_t row = from_row; row < to_row; ++row) {
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t g = head / in_group, h = head % in_group;
        const T* x = from + g * s[0] + h * s[1] + row * s[2];
        const T b = from_lse[g * l[0] + h * l[1] + row * l[2]];
        T* y = into + ((begin + row) * heads + head) * d;
        T& a = into_lse[(begin + row) * heads + head];
        if (first) {
          std::memcpy(y, x, d * sizeof(T));
          a = b;
          continue;
        }
        const T top = std::max(a, b);
        const T ea = std::exp(a - top), eb = std::exp(b - top), sum = ea + eb;
        const T wa = ea / sum, wb = eb / sum;
        for (int64_t i = 0; i < d; ++i) y[i] = wa * y[i] + wb * x[i];
        a = top + std::log(sum);
      }
    }
  });
}

struct TreeAttention : public torch::autograd::Function<TreeAttention> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const std::vector<int64_t>& flat) {
    const int64_t groups = k.size(1), in_group = q.size(1) / groups;
    Tensor out = at::empty({q.size(0), q.size(1), q.size(2)}, q.options());
    Tensor lse = at::empty({q.size(0), q.size(1)}, q.options());
    for (const Piece& p : pieces_of(flat)) {
      const auto answer = at::_scaled_dot_product_flash_attention_for_cpu(
          grouped(q, p.query, p.queries, groups), shared(k, p.key, p.keys, in_group), shared(v, p.key, p.keys, in_group),
          0.0, p.causal);
      const Tensor &part = std::get<0>(answer), &part_lse = std::get<1>(answer);
      AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), "merge",
                                 [&] { merge<scalar_t>(part, part_lse, out, lse, p.query, p.causal); });
    }
    ctx->saved_data["pieces"] = flat;
    ctx->save_for_backward({q, k, v, out, lse});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& above) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &lse = saved[4];
    const int64_t groups = k.size(1), in_group = q.size(1) / groups;
    const Tensor dout = above[0].contiguous();
    Tensor dq = at::empty_like(q), dk = at::zeros_like(k), dv = at::zeros_like(v);
    for (const Piece& p : pieces_of(ctx->saved_data["pieces"].toIntVector())) {
      const Tensor part_lse = lse.narrow(0, p.query, p.queries).view({p.queries, groups, in_group}).permute({1, 2, 0});
      const auto answer = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          grouped(dout, p.query, p.queries, groups), grouped(q, p.query, p.queries, groups),
          shared(k, p.key, p.keys, in_group), shared(v, p.key, p.keys, in_group),
          grouped(out, p.query, p.queries, groups), part_lse, 0.0, p.causal);
      Tensor into = grouped(dq, p.query, p.queries, groups);
      if (p.causal) {
        into.copy_(std::get<0>(answer));
      } else {
        into.add_(std::get<0>(answer));
      }
      dk.narrow(0, p.key, p.keys).add_(std::get<1>(answer).sum(1).permute({1, 0, 2}));
      dv.narrow(0, p.key, p.keys).add_(std::get<2>(answer).sum(1).permute({1, 0, 2}));
    }
    return {dq, dk, dv, Variable()};
  }
};

// Rotates pairs (i, i + d/2) of every head by its token's angle; the gradient is the rotation by the negative angle.
template <typename T>
void rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, Tensor& y, T sign) {
  const int64_t n = x.size(0), heads = x.size(1), half = x.size(2) / 2;
  const T *from = x.const_data_ptr<T>(), *c = cos.const_data_ptr<T>(), *s = sin.const_data_ptr<T>();
  T* into = y.mutable_data_ptr<T>();
  at::parallel_for(0, n, 32, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T *__restrict cr = c + row * half, *__restrict sr = s + row * half;
      for (int64_t head = 0; head < heads; ++head) {
        const T* __restrict a = from + (row * heads + head) * 2 * half;
        T* __restrict b = into + (row * heads + head) * 2 * half;
        for (int64_t i = 0; i < half; ++i) {
          const T sine = sign * sr[i];
          b[i] = a[i] * cr[i] - a[half + i] * sine;
          b[half + i] = a[half + i] * cr[i] + a[i] * sine;
        }
      }
    }
  });
}

Tensor rotated(const Tensor& x, const Tensor& cos, const Tensor& sin, int sign) {
  const Tensor from = x.contiguous();
  Tensor y = at::empty_like(from);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "rotate", [&] { rotate<scalar_t>(from, cos, sin, y, sign); });
  return y;
}

struct Rotation : public torch::autograd::Function<Rotation> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& cos, const Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    return rotated(x, cos, sin, 1);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& above) {
    const auto saved = ctx->get_saved_variables();
    return {rotated(above[0], saved[0], saved[1], -1), Variable(), Variable()};
  }
};

}  // namespace

extern "C" {

// q: [n, heads, d]; k, v: [n, groups, d]; pieces: five numbers each (first query, queries, first key, keys, causal). The result is [n, heads, d].
int grpo_tree_attention(void* q, void* k, void* v, const int64_t* pieces, size_t numbers, void** out, char* error,
                        size_t room) {
  return guarded(error, room, [&] {
    const std::vector<int64_t> flat(pieces, pieces + numbers);
    *out = new Tensor(
        TreeAttention::apply(of(q).contiguous(), of(k).contiguous(), of(v).contiguous(), flat));
  });
}

// x: [n, heads, d]; cos, sin: [n, d / 2].
int grpo_rotate(void* x, void* cos, void* sin, void** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    *out = new Tensor(Rotation::apply(of(x), of(cos).contiguous(), of(sin).contiguous()));
  });
}

// One AdamW step in place. `steps`: steps taken, this one among them.
int grpo_adamw(void* values, void* gradient, void* first, void* second, double steps, double rate, double beta1,
               double beta2, double decay, double epsilon, char* error, size_t room) {
  return guarded(error, room, [&] {
    at::NoGradGuard no_grad;
    const Tensor count = at::full({}, steps, at::TensorOptions().dtype(at::kFloat).device(of(values).device()));
    at::_fused_adamw_({of(values)}, {of(gradient)}, {of(first)}, {of(second)}, {}, {count}, rate, beta1, beta2, decay,
                      epsilon, false, false);
  });
}

}  // extern "C"
