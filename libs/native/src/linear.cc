// Linear layers, and a SwiGLU with the linear layer after it. Gradients are by hand, so that a weight's gradient has
// the weight's own memory order, and backward keeps nothing that one pass can compute again.
//
// On CPUs, oneDNN computes 32-bit products of tokens and weights if libtorch has it: on AMD CPUs with AVX-512 it is
// faster than MKL, which libtorch's own matmul calls, most of all for narrow inputs.

#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "call.h"
#include "fused.h"
#include "kernels.h"

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

using Pointwise = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&, std::string_view,
                         c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);

// oneDNN's inner product; nullopt if this libtorch does not have it.
const std::optional<c10::TypedOperatorHandle<Pointwise>>& pointwise() {
  static const auto found = []() -> std::optional<c10::TypedOperatorHandle<Pointwise>> {
    const auto schema = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (!at::hasMKLDNN() || !schema) return std::nullopt;
    return schema->typed<Pointwise>();
  }();
  return found;
}

// x: [n, inputs], w: [outputs, inputs], of any strides, to [n, outputs].
Tensor product(const Tensor& x, const Tensor& w) {
  const auto& fast = pointwise();
  if (fast && x.device().is_cpu() && x.scalar_type() == at::kFloat && x.numel() > 0 && w.numel() > 0) {
    return fast->call(x, w, std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), "");
  }
  return at::mm(x, w.t());
}

Tensor flat(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// Not a view for autograd, so that a bias may be added in place.
Tensor shaped(const Tensor& y, const Tensor& like) {
  auto sizes = like.sizes().vec();
  sizes.back() = y.size(1);
  return at::_unsafe_view(y, sizes);
}

struct Linear : public torch::autograd::Function<Linear> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& w) {
    ctx->save_for_backward({x, w});
    return shaped(product(flat(x), w), x);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& above) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &w = saved[1];
    const Tensor dy = flat(above[0]).contiguous();
    Tensor dx, dw;
    if (ctx->needs_input_grad(0)) dx = shaped(product(dy, w.t()), x);
    if (ctx->needs_input_grad(1)) dw = at::mm(dy.t(), flat(x));
    return {dx, dw};
  }
};

// y = x w' + scale dropped a' b': a linear layer with an adapter (LoRA, arXiv 2106.09685), added inside of the
// products: no tensor of the layer's width is written for the adapter. dropped: x after dropout, or x again with `drops`
// false.
struct Adapted : public torch::autograd::Function<Adapted> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& dropped, const Tensor& w, const Tensor& a, const Tensor& b, double scale,
                        bool drops) {
    Tensor y = product(flat(x), w);
    const Tensor narrow = at::mm(flat(dropped), a.t());
    y.addmm_(narrow, b.t(), 1, scale);
    ctx->save_for_backward({x, dropped, w, a, b, narrow});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["drops"] = drops;
    return shaped(y, x);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& above) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &dropped = saved[1], &w = saved[2], &a = saved[3], &b = saved[4], &narrow = saved[5];
    const double scale = ctx->saved_data["scale"].toDouble();
    const bool drops = ctx->saved_data["drops"].toBool();
    const Tensor dy = flat(above[0]).contiguous(), dnarrow = at::mm(dy, b);
    // scale p q, in one product.
    const auto scaled = [&](const Tensor& p, const Tensor& q) {
      Tensor out = at::empty({p.size(0), q.size(1)}, p.options());
      return at::addmm_out(out, out, p, q, 0, scale);
    };
    Tensor dx, ddropped, dw, da, db;
    if (ctx->needs_input_grad(0)) {
      dx = product(dy, w.t());
      if (!drops) dx.addmm_(dnarrow, a, 1, scale);
      dx = shaped(dx, x);
    }
    if (drops && ctx->needs_input_grad(1)) ddropped = shaped(scaled(dnarrow, a), x);
    if (ctx->needs_input_grad(2)) dw = at::mm(dy.t(), flat(x));
    if (ctx->needs_input_grad(3)) da = scaled(dnarrow.t(), flat(dropped));
    if (ctx->needs_input_grad(4)) db = scaled(dy.t(), narrow);
    return {dx, ddropped, dw, da, db, Variable(), Variable()};
  }
};

// y = (silu(gate) * up) w'. Backward computes the input of w again.
struct Gated : public torch::autograd::Function<Gated> {
  static Tensor forward(AutogradContext* ctx, const Tensor& gate, const Tensor& up, const Tensor& w) {
    ctx->save_for_backward({gate, up, w});
    return shaped(product(flat(gated(gate, up)), w), gate);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& above) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &gate = saved[0], &up = saved[1], &w = saved[2];
    const Tensor dy = flat(above[0]).contiguous();
    if (kernels::compute(gate)) {
      Tensor dw;
      if (ctx->needs_input_grad(2)) dw = at::mm(dy.t(), flat(gated(gate, up)));
      const auto [dgate, dup] = gated_backward(gate, up, shaped(product(dy, w.t()), gate));
      return {dgate, dup, dw};
    }
    Tensor opened = at::silu(gate), dw;
    Tensor middle = opened * up;
    if (ctx->needs_input_grad(2)) dw = at::mm(dy.t(), flat(middle));
    const Tensor flows = shaped(product(dy, w.t()), gate);
    at::mul_out(middle, flows, up);
    const Tensor dgate = at::silu_backward(middle, gate);
    return {dgate, opened.mul_(flows), dw};
  }
};

}  // namespace

extern "C" {

// x: [.., inputs], weight: [outputs, inputs].
int grpo_linear(void* x, void* weight, void** out, char* error, size_t room) {
  return guarded(error, room, [&] { *out = new Tensor(Linear::apply(of(x), of(weight))); });
}

// x, dropped (null: x): [.., inputs], weight: [outputs, inputs], a: [rank, inputs], b: [outputs, rank].
int grpo_adapted(void* x, void* dropped, void* weight, void* a, void* b, double scale, void** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    *out = new Tensor(Adapted::apply(of(x), of(dropped == nullptr ? x : dropped), of(weight), of(a), of(b), scale, dropped != nullptr));
  });
}

// gate, up: [.., inputs], weight: [outputs, inputs].
int grpo_gated(void* gate, void* up, void* weight, void** out, char* error, size_t room) {
  return guarded(error, room, [&] { *out = new Tensor(Gated::apply(of(gate), of(up), of(weight))); });
}

// Adds the gradients of <y, above> to those of y's leaves; y and above have the same shape and kind.
int grpo_backward(void* y, void* above, char* error, size_t room) {
  return guarded(error, room, [&] { torch::autograd::backward({of(y)}, {of(above)}); });
}

}  // extern "C"
