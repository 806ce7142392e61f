// Parts of a block in one pass over memory each, keeping for backward only what cannot be computed again from its inputs.

#include <algorithm>
#include <cmath>
#include <cstring>
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

// Compiled for several vector widths; the processor's is chosen when the library is loaded.
#define WIDTHS __attribute__((target_clones("avx512f", "avx2", "default")))

template <typename T>
inline __attribute__((always_inline)) void norm_row(const T* __restrict x, const T* __restrict w, T* __restrict y, T& scale,
                                                    int64_t h, double epsilon) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < h; ++i) sum += x[i] * x[i];
  const T r = T(1) / std::sqrt(sum / T(h) + T(epsilon));
  scale = r;
#pragma omp simd
  for (int64_t i = 0; i < h; ++i) y[i] = x[i] * r * w[i];
}

// y = x r w with r = rsqrt(mean(x^2) + eps): dx = r (g - x r^2 mean(g x)) with g = dy w, and dw gets dy x r.
template <typename T>
inline __attribute__((always_inline)) void back_row(const T* __restrict x, const T* __restrict w, const T* __restrict dy,
                                                    T* __restrict dx, T* __restrict dw, T r, int64_t h) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < h; ++i) sum += dy[i] * w[i] * x[i];
  const T c = sum * r * r / T(h);
#pragma omp simd
  for (int64_t i = 0; i < h; ++i) {
    dw[i] += dy[i] * x[i] * r;
    dx[i] = r * (dy[i] * w[i] - x[i] * c);
  }
}

WIDTHS void norm_rows(const float* x, const float* w, float* y, float* r, int64_t n, int64_t h, double e) {
  for (int64_t i = 0; i < n; ++i) norm_row(x + i * h, w, y + i * h, r[i], h, e);
}
WIDTHS void norm_rows(const double* x, const double* w, double* y, double* r, int64_t n, int64_t h, double e) {
  for (int64_t i = 0; i < n; ++i) norm_row(x + i * h, w, y + i * h, r[i], h, e);
}
WIDTHS void back_rows(const float* x, const float* w, const float* dy, float* dx, float* dw, const float* r, int64_t n,
                      int64_t h) {
  for (int64_t i = 0; i < n; ++i) back_row(x + i * h, w, dy + i * h, dx + i * h, dw, r[i], h);
}
WIDTHS void back_rows(const double* x, const double* w, const double* dy, double* dx, double* dw, const double* r,
                      int64_t n, int64_t h) {
  for (int64_t i = 0; i < n; ++i) back_row(x + i * h, w, dy + i * h, dx + i * h, dw, r[i], h);
}

// Parts whose weight gradients are summed by themselves, however many threads there are: the same bits on any machine of one width.
constexpr int64_t PARTS = 32;

struct RmsNorm : public torch::autograd::Function<RmsNorm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& input, const Tensor& weight, double epsilon) {
    const Tensor x = input.contiguous(), w = weight.contiguous();
    const int64_t h = w.numel(), n = x.numel() / h;
    Tensor y = at::empty_like(x), r = at::empty({n}, x.options());
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "rms_norm", [&] {
      const scalar_t *xs = x.const_data_ptr<scalar_t>(), *ws = w.const_data_ptr<scalar_t>();
      scalar_t *ys = y.mutable_data_ptr<scalar_t>(), *rs = r.mutable_data_ptr<scalar_t>();
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
    const int64_t h = w.numel(), n = x.numel() / h;
    const Tensor dy = above[0].contiguous();
    Tensor dx = at::empty_like(x), dw = at::zeros({PARTS, h}, w.options());
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "rms_norm_backward", [&] {
      const scalar_t *xs = x.const_data_ptr<scalar_t>(), *ws = w.const_data_ptr<scalar_t>(),
                     *dys = dy.const_data_ptr<scalar_t>(), *rs = r.const_data_ptr<scalar_t>();
      scalar_t *dxs = dx.mutable_data_ptr<scalar_t>(), *dws = dw.mutable_data_ptr<scalar_t>();
      const int64_t size = (n + PARTS - 1) / PARTS;
      at::parallel_for(0, PARTS, 1, [&](int64_t first, int64_t last) {
        for (int64_t part = first; part < last; ++part) {
          const int64_t begin = std::min(n, part * size), end = std::min(n, begin + size);
          back_rows(xs + begin * h, ws, dys + begin * h, dxs + begin * h, dws + part * h, rs + begin, end - begin, h);
        }
      });
    });
    return {dx, dw.sum(0), Variable()};
  }
};

struct SwiGlu : public torch::autograd::Function<SwiGlu> {
  static Tensor forward(AutogradContext* ctx, const Tensor& gate, const Tensor& up) {
    ctx->save_for_backward({gate, up});
    return at::silu(gate).mul_(up);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& above) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &gate = saved[0], &up = saved[1];
    const Tensor dgate = at::silu_backward(above[0] * up, gate);
    return {dgate, at::silu(gate).mul_(above[0])};
  }
};

}  // namespace

extern "C" {

// x: [.., h], weight: [h].
int grpo_rms_norm(void* x, void* weight, double epsilon, void** out, char* error, size_t room) {
  return guarded(error, room, [&] { *out = new Tensor(RmsNorm::apply(of(x), of(weight), epsilon)); });
}

int grpo_swiglu(void* gate, void* up, void** out, char* error, size_t room) {
  return guarded(error, room, [&] { *out = new Tensor(SwiGlu::apply(of(gate), of(up))); });
}

}  // extern "C"
