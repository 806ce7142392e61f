// The vocabulary head on a GPU in bf16: two products and two kernels for a chunk of tokens, in one buffer of logits.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "call.h"
#include "kernels.h"
#include "recorder.h"

namespace {

using at::Tensor;

// The first [n, v] of the buffer, in fp32.
Tensor logits_in(const Tensor& buffer, int64_t n, int64_t v) { return buffer.narrow(0, 0, n * v).view({n, v}); }

// The product of a: [n, k] and b: [k, m] in bf16, in fp32; added to `sum` if that is defined, else into `out` if that
// is.
Tensor product(const Tensor& a, const Tensor& b, Tensor out, Tensor sum) {
  if (a.is_meta()) {
    const Tensor y = sum.defined() ? sum : out.defined() ? out : at::empty({a.size(0), b.size(1)}, a.options().dtype(at::kFloat));
    const double flops = 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(1));
    recorder::add("aten::mm", flops, recorder::bytes({a, b, sum}), recorder::bytes(y));
    return y;
  }
  if (sum.defined()) return at::addmm_out(sum, sum, a, b, at::kFloat);
  return out.defined() ? at::mm_out(out, a, b, at::kFloat) : at::mm(a, b, at::kFloat);
}

}  // namespace

extern "C" {

// Whether the functions below support this weight of a head: [vocabulary, h].
int grpo_head_has_kernels(void* weight) { return kernels::compute(of(weight)) && of(weight).size(0) % 4 == 0 ? 1 : 0; }

// weight: [v, h] and hidden: [n, h] in bf16; targets: [n] int64; temperatures: [n] and buffer: [>= n v] in fp32. Leaves
// logits in the buffer, and returns the targets' logprobs, entropies and logarithms of sums, [3, n].
int grpo_head_scores(void* weight, void* hidden, void* targets, void* temperatures, void* buffer, void** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    at::NoGradGuard no_grad;
    const int64_t n = of(hidden).size(0), v = of(weight).size(0);
    const Tensor logits = logits_in(of(buffer), n, v);
    product(of(hidden), of(weight).t(), logits, Tensor());
    const Tensor found = at::empty({3, n}, logits.options());
    const Tensor to = of(targets).contiguous(), by = of(temperatures).contiguous();
    kernels::launch("scores", n, kernels::HEAD_THREADS, kernels::in<float>(logits), kernels::in<int64_t>(to), kernels::in<float>(by),
                    kernels::out<float>(found[0]), kernels::out<float>(found[1]), kernels::out<float>(found[2]), static_cast<long long>(v));
    *out = new Tensor(found);
  });
}

// Call it after the scores of the same chunk. Adds to `gradient`, the weight's, [v, h] in fp32 (null: not trained), and
// returns the gradient of hidden, [n, h] in fp32. by_logprobs, by_entropies (null: not used): [n] in fp32. Overwrites
// the buffer.
int grpo_head_gradients(void* weight, void* hidden, void* targets, void* temperatures, void* buffer, void* scores, void* by_logprobs,
                        void* by_entropies, void* gradient, void** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    at::NoGradGuard no_grad;
    const int64_t n = of(hidden).size(0), v = of(weight).size(0);
    const Tensor logits = logits_in(of(buffer), n, v);
    const Tensor found = of(scores).contiguous(), to = of(targets).contiguous(), by = of(temperatures).contiguous();
    const Tensor logprobs = of(by_logprobs).contiguous(), entropies = by_entropies == nullptr ? Tensor() : of(by_entropies).contiguous();
    const void* const weighed = by_entropies == nullptr ? nullptr : kernels::in<float>(entropies);
    kernels::launch("scores_back", n, kernels::HEAD_THREADS, kernels::out<float>(logits), kernels::in<int64_t>(to), kernels::in<float>(by),
                    kernels::in<float>(found[2]), kernels::in<float>(found[1]), kernels::in<float>(logprobs), weighed, static_cast<long long>(v));
    // The gradients are in the first half of each row.
    const Tensor above = logits.view(at::kBFloat16).narrow(1, 0, v);
    if (gradient != nullptr) product(above.t(), of(hidden), Tensor(), of(gradient));
    *out = new Tensor(product(above, of(weight), Tensor(), Tensor()));
  });
}

}  // extern "C"
