// Parts of a block, each in one pass over memory. Backward keeps only what it cannot compute again from the inputs.

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "call.h"
#include "fused.h"
#include "kernels.h"

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Compiled for several vector widths; the loader chooses the CPU's.
#define WIDTHS __attribute__((target_clones("avx512f", "avx2", "default")))

// T: type of the values; S: type of the sums, fp32 for bf16.
template <typename T, typename S>
inline __attribute__((always_inline)) void norm_row(const T* __restrict x, const T* __restrict w, T* __restrict y, S& scale,
                                                    int64_t h, double epsilon) {
  S sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < h; ++i) sum += S(x[i]) * S(x[i]);
  const S r = S(1) / std::sqrt(sum / S(h) + S(epsilon));
  scale = r;
#pragma omp simd
  for (int64_t i = 0; i < h; ++i) y[i] = T(S(x[i]) * r * S(w[i]));
}

// y = x r w with r = rsqrt(mean(x^2) + eps): dx = r (g - x r^2 mean(g x)) with g = dy w, and dw gets dy x r.
template <typename T, typename S>
inline __attribute__((always_inline)) void back_row(const T* __restrict x, const T* __restrict w, const T* __restrict dy,
                                                    T* __restrict dx, S* __restrict dw, S r, int64_t h) {
  S sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < h; ++i) sum += S(dy[i]) * S(w[i]) * S(x[i]);
  const S c = sum * r * r / S(h);
#pragma omp simd
  for (int64_t i = 0; i < h; ++i) {
    dw[i] += S(dy[i]) * S(x[i]) * r;
    dx[i] = T(r * (S(dy[i]) * S(w[i]) - S(x[i]) * c));
  }
}

#define ROWS(T, S)                                                                                                    \
  WIDTHS void norm_rows(const T* x, const T* w, T* y, S* r, int64_t n, int64_t h, double e) {                        \
    for (int64_t i = 0; i < n; ++i) norm_row<T, S>(x + i * h, w, y + i * h, r[i], h, e);                              \
  }                                                                                                                   \
  WIDTHS void back_rows(const T* x, const T* w, const T* dy, T* dx, S* dw, const S* r, int64_t n, int64_t h) {       \
    for (int64_t i = 0; i < n; ++i) back_row<T, S>(x + i * h, w, dy + i * h, dx + i * h, dw, r[i], h);                \
  }
ROWS(float, float)
ROWS(double, double)
ROWS(c10::BFloat16, float)

// RMSNorm by operations on tensors, for inputs that neither these loops nor the GPU's kernels take. Forward and
// backward also return r, [n].
std::pair<Tensor, Tensor> norm_by_operations(const Tensor& x, const Tensor& w, double epsilon) {
  const at::ScalarType sums = at::toOpMathType(x.scalar_type());
  const Tensor rows = x.reshape({-1, w.numel()}).to(sums);
  const Tensor r = rows.square().mean(-1).add(epsilon).rsqrt();
  return {(rows * r.unsqueeze(-1) * w).to(x.scalar_type()).view(x.sizes()), r};
}

std::pair<Tensor, Tensor> norm_backward_by_operations(const Tensor& x, const Tensor& w, const Tensor& r, const Tensor& above) {
  const at::ScalarType sums = r.scalar_type();
  const Tensor rows = x.reshape({-1, w.numel()}).to(sums), dy = above.reshape({-1, w.numel()}).to(sums);
  const Tensor scaled = rows * r.unsqueeze(-1), g = dy * w;
  const Tensor dx = (g - scaled * (g * scaled).mean(-1, true)) * r.unsqueeze(-1);
  return {dx.to(x.scalar_type()).view(x.sizes()), (dy * scaled).sum(0).to(w.scalar_type())};
}

// RMSNorm by kernels on a GPU. A warp takes a row of up to 1,024 values, a block a longer one.
constexpr int64_t WARP_ROW = 1024, LONGEST_ROW = 8192;
// Groups of threads that sum parts of a weight's gradient. Their number is the same on every GPU, and so are the bits.
constexpr int64_t GROUPS_OF_WARPS = 128, GROUPS_OF_BLOCKS = 264;

// Blocks of a backward pass. Rows of up to 128 values are many, and their parts are small.
int64_t groups_for(int64_t h) { return h > WARP_ROW ? GROUPS_OF_BLOCKS : h > 128 ? GROUPS_OF_WARPS : 4 * GROUPS_OF_WARPS; }

bool by_kernels(const Tensor& x, const Tensor& w) { return kernels::compute(x) && kernels::compute(w) && w.numel() <= LONGEST_ROW; }

const char* norm_kernel(int64_t h, bool back) {
  if (h <= 128) return back ? "norm_back_128" : "norm_128";
  if (h <= WARP_ROW) return back ? "norm_back_1024" : "norm_1024";
  return back ? "norm_back_8192" : "norm_8192";
}

int64_t rows_of_block(int64_t h) { return h <= WARP_ROW ? kernels::THREADS / 32 : 1; }

std::pair<Tensor, Tensor> norm_by_kernel(const Tensor& x, const Tensor& w, double epsilon) {
  const int64_t h = w.numel(), n = x.numel() / h;
  const Tensor y = at::empty_like(x), r = at::empty({n}, x.options().dtype(at::kFloat));
  kernels::launch(norm_kernel(h, false), kernels::blocks_for(n, rows_of_block(h)), kernels::THREADS, kernels::in(x), kernels::in(w), kernels::out(y),
                  kernels::out<float>(r), static_cast<long long>(n), static_cast<int>(h), static_cast<float>(epsilon));
  return {y, r};
}

std::pair<Tensor, Tensor> norm_backward_by_kernel(const Tensor& x, const Tensor& w, const Tensor& r, const Tensor& dy) {
  const int64_t h = w.numel(), n = x.numel() / h, blocks = groups_for(h);
  const Tensor dx = at::empty_like(x), parts = at::empty({blocks * rows_of_block(h), h}, r.options());
  kernels::launch(norm_kernel(h, true), blocks, kernels::THREADS, kernels::in(x), kernels::in(w), kernels::in(dy), kernels::in<float>(r),
                  kernels::out(dx), kernels::out<float>(parts), static_cast<long long>(n), static_cast<int>(h));
  // One launch in place of two, for the sum and its rounding.
  const Tensor dw = at::empty_like(w);
  kernels::launch("sum_parts", kernels::blocks_for(h, 32), kernels::SUM_THREADS, kernels::in<float>(parts), kernels::out(dw),
                  static_cast<int>(parts.size(0)), static_cast<int>(h));
  return {dx, dw};
}

// Parts whose weight gradients are summed separately. Their number does not depend on the number of threads: the same
// bits on any machine of one vector width.
constexpr int64_t PARTS = 32;

struct RmsNorm : public torch::autograd::Function<RmsNorm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& input, const Tensor& weight, double epsilon, bool generic) {
    const Tensor x = input.contiguous(), w = weight.contiguous();
    const bool by_operations = generic || !x.device().is_cpu();
    ctx->saved_data["by_operations"] = by_operations;
    const bool kernel = !generic && by_kernels(x, w);
    ctx->saved_data["by_kernels"] = kernel;
    if (kernel) {
      const auto [y, r] = norm_by_kernel(x, w, epsilon);
      ctx->save_for_backward({x, w, r});
      return y;
    }
    if (by_operations) {
      const auto [y, r] = norm_by_operations(x, w, epsilon);
      ctx->save_for_backward({x, w, r});
      return y;
    }
    const int64_t h = w.numel(), n = x.numel() / h;
    Tensor y = at::empty_like(x), r = at::empty({n}, x.options().dtype(at::toOpMathType(x.scalar_type())));
    AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, x.scalar_type(), "rms_norm", [&] {
      using sum_t = at::opmath_type<scalar_t>;
      const scalar_t *xs = x.const_data_ptr<scalar_t>(), *ws = w.const_data_ptr<scalar_t>();
      scalar_t* ys = y.mutable_data_ptr<scalar_t>();
      sum_t* rs = r.mutable_data_ptr<sum_t>();
      at::parallel_for(0, n, std::max<int64_t>(1, 16384 / h), [&](int64_t begin, int64_t end) {
        norm_rows(xs + begin * h, ws, ys + begin * h, rs + begin, end - begin, h, epsilon);
      });
    });
    ctx->save_for_backward({x, w, r});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& above) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &w = saved[1], &r = saved[2];
    if (ctx->saved_data["by_kernels"].toBool()) {
      const auto [dx, dw] = norm_backward_by_kernel(x, w, r, above[0].contiguous());
      return {dx, dw, Variable(), Variable()};
    }
    if (ctx->saved_data["by_operations"].toBool()) {
      const auto [dx, dw] = norm_backward_by_operations(x, w, r, above[0]);
      return {dx, dw, Variable(), Variable()};
    }
    const int64_t h = w.numel(), n = x.numel() / h;
    const Tensor dy = above[0].contiguous();
    Tensor dx = at::empty_like(x), dw = at::zeros({PARTS, h}, r.options());
    AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, x.scalar_type(), "rms_norm_backward", [&] {
      using sum_t = at::opmath_type<scalar_t>;
      const scalar_t *xs = x.const_data_ptr<scalar_t>(), *ws = w.const_data_ptr<scalar_t>(),
                     *dys = dy.const_data_ptr<scalar_t>();
      const sum_t* rs = r.const_data_ptr<sum_t>();
      scalar_t* dxs = dx.mutable_data_ptr<scalar_t>();
      sum_t* dws = dw.mutable_data_ptr<sum_t>();
      const int64_t size = (n + PARTS - 1) / PARTS;
      at::parallel_for(0, PARTS, 1, [&](int64_t first, int64_t last) {
        for (int64_t part = first; part < last; ++part) {
          const int64_t begin = std::min(n, part * size), end = std::min(n, begin + size);
          back_rows(xs + begin * h, ws, dys + begin * h, dxs + begin * h, dws + part * h, rs + begin, end - begin, h);
        }
      });
    });
    return {dx, dw.sum(0).to(w.scalar_type()), Variable(), Variable()};
  }
};

}  // namespace

Tensor gated(const Tensor& gate, const Tensor& up) {
  if (!kernels::compute(gate)) return at::silu(gate).mul_(up);
  const Tensor g = gate.contiguous(), u = up.contiguous(), y = at::empty_like(g);
  const int64_t fours = g.numel() / 4;
  kernels::launch("gated", kernels::blocks_for(fours, kernels::THREADS), kernels::THREADS, kernels::in(g), kernels::in(u), kernels::out(y),
                  static_cast<long long>(fours));
  return y;
}

std::pair<Tensor, Tensor> gated_backward(const Tensor& gate, const Tensor& up, const Tensor& above) {
  if (!kernels::compute(gate)) {
    const Tensor dgate = at::silu_backward(above * up, gate);
    return {dgate, at::silu(gate).mul_(above)};
  }
  const Tensor g = gate.contiguous(), u = up.contiguous(), dy = above.contiguous();
  const Tensor dgate = at::empty_like(g), dup = at::empty_like(g);
  const int64_t fours = g.numel() / 4;
  kernels::launch("gated_back", kernels::blocks_for(fours, kernels::THREADS), kernels::THREADS, kernels::in(g), kernels::in(u), kernels::in(dy),
                  kernels::out(dgate), kernels::out(dup), static_cast<long long>(fours));
  return {dgate, dup};
}

namespace {

struct SwiGlu : public torch::autograd::Function<SwiGlu> {
  static Tensor forward(AutogradContext* ctx, const Tensor& gate, const Tensor& up) {
    ctx->save_for_backward({gate, up});
    return gated(gate, up);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& above) {
    const auto saved = ctx->get_saved_variables();
    const auto [dgate, dup] = gated_backward(saved[0], saved[1], above[0]);
    return {dgate, dup};
  }
};

}  // namespace

extern "C" {

// x: [.., h], weight: [h].
int grpo_rms_norm(void* x, void* weight, double epsilon, int generic, void** out, char* error, size_t room) {
  return guarded(error, room, [&] { *out = new Tensor(RmsNorm::apply(of(x), of(weight), epsilon, generic != 0)); });
}

int grpo_swiglu(void* gate, void* up, void** out, char* error, size_t room) {
  return guarded(error, room, [&] { *out = new Tensor(SwiGlu::apply(of(gate), of(up))); });
}

}  // extern "C"
