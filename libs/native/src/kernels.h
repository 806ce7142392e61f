// Kernels of our own for a GPU (kernels.cu), launched in the stream that libtorch computes in.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

#include "recorder.h"

namespace kernels {

// Threads of a block, as in kernels.cu.
constexpr int THREADS = 256, HEAD_THREADS = 512, SUM_THREADS = 1024;

// Whether the kernels support this tensor: in bf16 on a GPU, readable in pieces of four values. A meta tensor counts as
// one on a Hopper GPU (recorder.h).
bool compute(const at::Tensor& x);

// Launches a kernel by name. `arguments`: addresses of its arguments.
void launch_with(const char* name, int64_t blocks, int threads, void** arguments);

// Arguments must have exactly the types of the kernel's parameters: pointers, long long, int, float.
template <typename... Arguments>
void launch(const char* name, int64_t blocks, int threads, Arguments... arguments) {
  if (recorder::launched(name) || blocks == 0) return;
  void* addresses[] = {&arguments...};
  launch_with(name, blocks, threads, addresses);
}

// Number of blocks of `threads` for `items`.
inline int64_t blocks_for(int64_t items, int threads) { return (items + threads - 1) / threads; }

// ATen's operations check where their tensors are; a kernel that gets a host address ends the process.
inline void check(const at::Tensor& x) {
  TORCH_CHECK((x.is_cuda() || x.is_meta()) && x.is_contiguous(), "a kernel of this trainer was given a tensor that is not on the GPU, or not contiguous");
}

template <typename T = at::BFloat16>
const void* in(const at::Tensor& x) {
  check(x);
  if (x.is_meta()) {
    recorder::reads(x);
    return nullptr;
  }
  return x.const_data_ptr<T>();
}

template <typename T = at::BFloat16>
void* out(const at::Tensor& x) {
  check(x);
  if (x.is_meta()) {
    recorder::writes(x);
    return nullptr;
  }
  return x.mutable_data_ptr<T>();
}

}  // namespace kernels
