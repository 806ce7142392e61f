// A mixture's experts on a GPU in bf16: tokens in the order of their experts, and one grouped product over all experts
// for each of an expert's three matrices. On Hopper libtorch's grouped products read the end of each expert's tokens
// from the device, so the host does not wait. On older GPUs each call waits; on Blackwell the gradients of experts
// without tokens may be wrong (pytorch/pytorch#172439).

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#ifdef GRPO_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

#include "call.h"
#include "fused.h"
#include "kernels.h"
#include "recorder.h"

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// The matrix-th of each expert's three as one tensor, [experts, outputs, inputs]: a view if they are equally spaced in
// memory, as in a gathered unit.
Tensor together(at::TensorList weights, size_t matrix) {
  std::vector<Tensor> each;
  for (size_t i = matrix; i < weights.size(); i += 3) each.push_back(weights[i]);
  const Tensor& first = each.front();
  if (first.is_meta()) return at::empty({static_cast<int64_t>(each.size()), first.size(0), first.size(1)}, first.options());
  const auto place = [](const Tensor& x) { return static_cast<const char*>(x.const_data_ptr()); };
  const int64_t width = static_cast<int64_t>(first.element_size());
  const int64_t step = each.size() > 1 ? place(each[1]) - place(first) : 0;
  bool even = step > 0 && step % (16 * width) == 0 && reinterpret_cast<uintptr_t>(place(first)) % 16 == 0;
  for (size_t i = 0; even && i < each.size(); ++i) {
    even = each[i].is_contiguous() && each[i].storage().is_alias_of(first.storage()) && place(each[i]) == place(first) + static_cast<int64_t>(i) * step;
  }
  if (!even) return at::stack(each);
  return first.as_strided({static_cast<int64_t>(each.size()), first.size(0), first.size(1)}, {step / width, first.size(1), 1});
}

// Grouped products: x: [n, h] by each expert's w: [experts, h, outputs], to [n, outputs]; for gradients of weights,
// x: [outputs, n] by w: [n, h], to [experts, outputs, h].
Tensor grouped(const Tensor& x, const Tensor& w, const Tensor& ends) {
  if (!x.is_meta()) return at::_grouped_mm(x, w, ends);
  const bool weights = w.dim() == 2;
  const Tensor y = weights ? at::empty({ends.numel(), x.size(0), w.size(1)}, x.options()) : at::empty({x.size(0), w.size(2)}, x.options());
  const double flops = 2.0 * static_cast<double>(x.numel()) * static_cast<double>(w.size(-1));
  recorder::add("aten::_grouped_mm", flops, recorder::bytes({x, w, ends}), recorder::bytes(y));
  return y;
}

struct Experts : public torch::autograd::Function<Experts> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& ends, at::TensorList weights) {
    const Tensor gates = together(weights, 0), ups = together(weights, 1), downs = together(weights, 2);
    const Tensor gate = grouped(x, gates.transpose(1, 2), ends), up = grouped(x, ups.transpose(1, 2), ends);
    ctx->saved_data["trained"] = weights.front().requires_grad();
    // Views of the weights, which the caller holds; copies if they are not equally spaced in memory.
    ctx->save_for_backward({x, ends, gate, up, gates, ups, downs});
    return grouped(gated(gate, up), downs.transpose(1, 2), ends);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& above) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &ends = saved[1], &gate = saved[2], &up = saved[3], &gates = saved[4], &ups = saved[5], &downs = saved[6];
    const Tensor dy = above[0].contiguous();
    const auto [dgate, dup] = gated_backward(gate, up, grouped(dy, downs, ends));
    Tensor dx;
    if (ctx->needs_input_grad(0)) dx = grouped(dgate, gates, ends).add_(grouped(dup, ups, ends));
    variable_list gradients{dx, Variable()};
    const int64_t experts = gates.size(0);
    if (!ctx->saved_data["trained"].toBool()) {
      gradients.resize(2 + 3 * experts);
      return gradients;
    }
    const Tensor dgates = grouped(dgate.t(), x, ends), dups = grouped(dup.t(), x, ends);
    const Tensor ddowns = grouped(dy.t(), gated(gate, up), ends);
    for (int64_t expert = 0; expert < experts; ++expert) {
      for (const Tensor* each : {&dgates, &dups, &ddowns}) gradients.push_back((*each)[expert]);
    }
    return gradients;
  }
};

}  // namespace

extern "C" {

// Whether the function below supports these tokens: [n, h].
int grpo_experts_have_kernels(void* x) {
#ifdef GRPO_CUDA
  if (of(x).is_cuda() && at::cuda::getCurrentDeviceProperties()->major != 9) return 0;
#endif
  return kernels::compute(of(x)) && of(x).size(1) % 8 == 0 ? 1 : 0;
}

// x: [n, h] in bf16, in the order of their experts; the tokens of the i-th expert end at ends[i], [experts] int32;
// weights: gate, up [width, h] and down [h, width] of each expert in turn. The result is [n, h].
int grpo_experts(void* x, void* ends, void* const* weights, size_t count, void** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    variable_list all;
    for (size_t i = 0; i < count; ++i) all.push_back(of(weights[i]));
    // As a TensorList: autograd does not follow other lists.
    *out = new Tensor(Experts::apply(of(x), of(ends), at::TensorList(all)));
  });
}

}  // extern "C"
