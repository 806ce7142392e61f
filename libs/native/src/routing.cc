// A mixture's tokens on their way to their experts and back. A token has `per_token` parts, one for each of its
// experts.
//
// Parts are sorted by expert; `order` gives each sorted place its part, and `back` each part its sorted place. Both
// ways read by these indices and write every place once, forward and backward: nothing is added to one place
// concurrently, so the bits repeat. A copy of all parts, [tokens * per_token, h], is the largest tensor of a block.
// On a GPU in bf16 neither direction makes a second one.

#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "call.h"
#include "kernels.h"

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// A token's parts: [tokens, per_token, h].
Tensor by_tokens(const Tensor& parts, const Tensor& back, int64_t per_token) {
  return parts.index_select(0, back).view({-1, per_token, parts.size(1)});
}

// The sum of each token's parts [tokens * per_token, h], weighted by shares [tokens, per_token] unless these are
// undefined.
Tensor summed(const Tensor& parts, const Tensor& shares, const Tensor& back, int64_t per_token) {
  if (kernels::compute(parts)) {
    const int64_t tokens = back.numel() / per_token, h = parts.size(1);
    const Tensor from = parts.contiguous(), y = at::empty({tokens, h}, parts.options());
    const Tensor by = shares.defined() ? shares.contiguous() : shares;
    const void* const weights = by.defined() ? kernels::in<float>(by) : nullptr;
    kernels::launch("combine", tokens, kernels::THREADS, kernels::in(from), weights, kernels::in<int64_t>(back), kernels::out(y),
                    static_cast<int>(per_token), static_cast<int>(h));
    return y;
  }
  const Tensor own = by_tokens(parts, back, per_token);
  return (shares.defined() ? own * shares.to(parts.scalar_type()).unsqueeze(-1) : own).sum(1);
}

struct Dispatch : public torch::autograd::Function<Dispatch> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& order, const Tensor& back, int64_t per_token) {
    ctx->save_for_backward({back});
    ctx->saved_data["per_token"] = per_token;
    return x.index_select(0, order.div(per_token, "floor"));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& above) {
    const Tensor back = ctx->get_saved_variables()[0];
    return {summed(above[0], Tensor(), back, ctx->saved_data["per_token"].toInt()), Variable(), Variable(), Variable()};
  }
};

struct Combine : public torch::autograd::Function<Combine> {
  static Tensor forward(AutogradContext* ctx, const Tensor& parts, const Tensor& shares, const Tensor& order, const Tensor& back) {
    ctx->save_for_backward({parts, shares, order, back});
    return summed(parts, shares, back, shares.size(1));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& above) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &parts = saved[0], &shares = saved[1], &order = saved[2], &back = saved[3];
    const int64_t per_token = shares.size(1), h = parts.size(1);
    const Tensor dy = above[0].contiguous();
    if (kernels::compute(parts) && kernels::compute(dy)) {
      const Tensor from = parts.contiguous(), by = shares.contiguous(), dparts = at::empty_like(from), dshares = at::empty_like(by);
      kernels::launch("combine_back", dy.size(0), kernels::THREADS, kernels::in(from), kernels::in<float>(by), kernels::in<int64_t>(back),
                      kernels::in(dy), kernels::out(dparts), kernels::out<float>(dshares), static_cast<int>(per_token), static_cast<int>(h));
      return {dparts, dshares, Variable(), Variable()};
    }
    const Tensor above_parts = dy.unsqueeze(1);
    const Tensor dshares = (by_tokens(parts, back, per_token) * above_parts).sum(-1).to(shares.scalar_type());
    const Tensor dparts = (above_parts * shares.to(parts.scalar_type()).unsqueeze(-1)).view({-1, h}).index_select(0, order);
    return {dparts, dshares, Variable(), Variable()};
  }
};

}  // namespace

extern "C" {

// experts: [tokens, per_token] int64 below count. Leaves the order of the parts, its inverse, both [tokens * per_token]
// int64, and the end of each expert's parts, [count] int32. The sort is stable.
int grpo_route(void* experts, int64_t count, void** order, void** back, void** ends, char* error, size_t room) {
  return guarded(error, room, [&] {
    const at::NoGradGuard no_grad;
    const Tensor flat = of(experts).reshape({-1});
    // A sort on a GPU takes a pass for each byte.
    const Tensor keys = flat.to(count <= 256 ? at::kByte : at::kInt);
    const auto [sorted, places] = keys.sort(/*stable=*/true, 0, false);
    const Tensor inverse = at::empty_like(places);
    inverse.scatter_(0, places, at::arange(flat.numel(), flat.options()));
    *order = new Tensor(places);
    *back = new Tensor(inverse);
    *ends = new Tensor(at::searchsorted(sorted, at::arange(count, keys.options()), /*out_int32=*/true, /*right=*/true));
  });
}

// x: [tokens, h]; order, back: [tokens * per_token] int64. The result is [tokens * per_token, h].
int grpo_dispatch(void* x, void* order, void* back, int64_t per_token, void** out, char* error, size_t room) {
  return guarded(error, room, [&] { *out = new Tensor(Dispatch::apply(of(x), of(order), of(back), per_token)); });
}

// parts: [tokens * per_token, h]; shares: [tokens, per_token], in fp32 where parts are in bf16. The result is
// [tokens, h].
int grpo_combine(void* parts, void* shares, void* order, void* back, void** out, char* error, size_t room) {
  return guarded(error, room, [&] { *out = new Tensor(Combine::apply(of(parts), of(shares), of(order), of(back))); });
}

}  // extern "C"
