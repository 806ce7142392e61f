// The GPU of a rank, and tensors' way between it and the host.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include <ATen/ATen.h>
#ifdef GRPO_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#endif

#include "call.h"

namespace {

// cuBLAS repeats its sums only with a workspace of a size that is known, and reads this when CUDA starts. A value that is set stays.
const int workspace_is_known = setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);

// A GPU that the process sees.
c10::DeviceIndex gpu(int index) {
#ifdef GRPO_CUDA
  const int there = c10::cuda::device_count();
  if (index >= there) {
    throw std::runtime_error("the process sees " + std::to_string(there) + " GPUs");
  }
  return static_cast<c10::DeviceIndex>(index);
#else
  static_cast<void>(index);
  throw std::runtime_error("this trainer is built without CUDA: name an image of trainer-image/Dockerfile.cuda in spec.trainer.image");
#endif
}

}  // namespace

extern "C" {

int grpo_use_gpu(int index, char* error, size_t room) {
  return guarded(error, room, [&] {
#ifdef GRPO_CUDA
    c10::cuda::set_device(gpu(index));
#else
    gpu(index);
#endif
  });
}

int grpo_gpu_name(int index, char* name, size_t name_room, char* error, size_t room) {
  return guarded(error, room, [&] {
#ifdef GRPO_CUDA
    const char* found = at::cuda::getDeviceProperties(gpu(index))->name;
    const size_t length = std::min(std::strlen(found), name_room - 1);
    std::memcpy(name, found, length);
    name[length] = 0;
#else
    gpu(index);
    static_cast<void>(name);
    static_cast<void>(name_room);
#endif
  });
}

// Bytes of that GPU's memory that this process could have now: what is free, and what libtorch keeps for later tensors.
int grpo_gpu_free(int index, uint64_t* bytes, char* error, size_t room) {
  return guarded(error, room, [&] {
#ifdef GRPO_CUDA
    const c10::DeviceIndex device = gpu(index);
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(c10::DeviceType::CUDA);
    const auto stats = allocator->getDeviceStats(device);
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const int64_t kept = stats.reserved_bytes[all].current - stats.allocated_bytes[all].current;
    *bytes = allocator->getMemoryInfo(device).first + static_cast<uint64_t>(std::max<int64_t>(0, kept));
#else
    gpu(index);
    static_cast<void>(bytes);
#endif
  });
}

// Operations that sum in an order of their own choice take one that is always the same. One that has none warns once: a run that ends for it would
// be worse than a replay with other last bits. What is not written yet is not filled: everything here is written before it is read.
void grpo_compute_deterministically(int on) {
  at::globalContext().setDeterministicAlgorithms(on != 0, true);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

int grpo_computes_deterministically() { return at::globalContext().deterministicAlgorithms() ? 1 : 0; }

int grpo_host_copy(void* x, void** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    const at::Tensor& from = of(x);
    if (from.device().is_cpu()) {
      *out = new at::Tensor(from);
      return;
    }
    at::Tensor host = at::empty(from.sizes(), from.options().device(at::kCPU).pinned_memory(true));
    host.copy_(from, true);
    *out = new at::Tensor(host);
  });
}

}  // extern "C"
