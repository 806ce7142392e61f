// Dropout whose mask is a function of keys: backward computes it again instead of keeping it, and it is the same on
// every device.

#include <algorithm>
#include <cstdint>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "call.h"
#include "kernels.h"

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): the column-th number of the stream that begins at key ^ salt. Its upper 32 bits decide.
constexpr uint64_t STEP = 0x9E3779B97F4A7C15, FIRST = 0xBF58476D1CE4E5B9, SECOND = 0x94D049BB133111EB;

inline uint32_t draw(uint64_t key, int64_t column) {
  uint64_t z = key + STEP * (uint64_t(column) + 1);
  z = (z ^ (z >> 30)) * FIRST;
  z = (z ^ (z >> 27)) * SECOND;
  return uint32_t((z ^ (z >> 31)) >> 32);
}

// `draw` by operations on tensors of signed numbers, whose right shift repeats the sign: [n, columns] int64 of 32 bits
// each.
Tensor draw_by_operations(const Tensor& keys, int64_t columns) {
  const auto shifted = [](const Tensor& z, int64_t by) {
    return z.bitwise_right_shift(by).bitwise_and((int64_t(1) << (64 - by)) - 1);
  };
  Tensor z = keys.unsqueeze(1) + at::arange(1, columns + 1, keys.options()) * int64_t(STEP);
  z = z.bitwise_xor(shifted(z, 30)) * int64_t(FIRST);
  z = z.bitwise_xor(shifted(z, 27)) * int64_t(SECOND);
  return shifted(z.bitwise_xor(shifted(z, 31)), 32);
}

struct Rule {
  int64_t salt;
  // A value with a draw below this is dropped; the others are multiplied by `scale`.
  uint32_t below;
  double scale;
  bool generic;
};

// x: [n, columns], contiguous; keys: [n].
Tensor drop(const Tensor& x, const Tensor& keys, const Rule& rule) {
  const int64_t columns = x.size(1);
  if (!rule.generic && kernels::compute(x)) {
    const Tensor y = at::empty_like(x);
    const int64_t fours = x.numel() / 4;
    kernels::launch("drop", kernels::blocks_for(fours, kernels::THREADS), kernels::THREADS, kernels::in(x), kernels::in<int64_t>(keys), kernels::out(y),
                    static_cast<long long>(x.size(0)), static_cast<int>(columns), static_cast<unsigned long long>(rule.salt), rule.below,
                    static_cast<float>(rule.scale));
    return y;
  }
  if (rule.generic || !x.device().is_cpu()) {
    const Tensor stays = draw_by_operations(keys.bitwise_xor(rule.salt), columns).ge(int64_t(rule.below));
    return at::where(stays, x * rule.scale, at::zeros({}, x.options()));
  }
  Tensor y = at::empty_like(x);
  const int64_t* key = keys.const_data_ptr<int64_t>();
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, x.scalar_type(), "dropout", [&] {
    using wide = at::opmath_type<scalar_t>;
    const scalar_t* from = x.const_data_ptr<scalar_t>();
    scalar_t* to = y.mutable_data_ptr<scalar_t>();
    const wide scale = wide(rule.scale);
    at::parallel_for(0, x.size(0), std::max<int64_t>(1, 16384 / std::max<int64_t>(1, columns)), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const uint64_t start = uint64_t(key[row]) ^ uint64_t(rule.salt);
        for (int64_t column = 0; column < columns; ++column) {
          const int64_t at = row * columns + column;
          to[at] = draw(start, column) < rule.below ? scalar_t(0) : scalar_t(wide(from[at]) * scale);
        }
      }
    });
  });
  return y;
}

struct Dropout : public torch::autograd::Function<Dropout> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& keys, int64_t salt, int64_t below, double scale, bool generic) {
    ctx->save_for_backward({keys});
    ctx->saved_data["salt"] = salt;
    ctx->saved_data["below"] = below;
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["generic"] = generic;
    const Tensor rows = x.reshape({keys.numel(), -1}).contiguous();
    return drop(rows, keys, {salt, uint32_t(below), scale, generic}).view(x.sizes());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& above) {
    const Tensor keys = ctx->get_saved_variables()[0];
    const Rule rule{ctx->saved_data["salt"].toInt(), uint32_t(ctx->saved_data["below"].toInt()), ctx->saved_data["scale"].toDouble(),
                    ctx->saved_data["generic"].toBool()};
    const Tensor rows = above[0].reshape({keys.numel(), -1}).contiguous();
    return {drop(rows, keys, rule).view(above[0].sizes()), Variable(), Variable(), Variable(), Variable(), Variable()};
  }
};

}  // namespace

extern "C" {

// x: [.., columns], with one row per key; keys: [n] int64.
int grpo_dropout(void* x, void* keys, int64_t salt, uint32_t below, double scale, int generic, void** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    *out = new Tensor(Dropout::apply(of(x), of(keys).contiguous(), salt, int64_t(below), scale, generic != 0));
  });
}

}  // extern "C"
