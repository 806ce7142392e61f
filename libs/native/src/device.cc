// The GPU of a rank, and copies of tensors between it and the host.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#ifdef GRPO_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#endif

#include "call.h"

namespace {

// cuBLAS repeats its sums only with a workspace of fixed size, and reads this variable when CUDA starts. A value that
// is already set stays.
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

// Streams and events through libtorch's interface for all devices: CUDA's interface is in a library that this one does
// not link.
c10::Stream computation(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

// The stream of a thread's copies between a GPU and the pod's memory: they run beside the computation.
c10::Stream copies(c10::Device device) {
  static thread_local std::map<c10::DeviceIndex, c10::Stream> streams;
  const auto found = streams.find(device.index());
  if (found != streams.end()) return found->second;
  const c10::Stream made = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  return streams.emplace(device.index(), made).first->second;
}

// Later work on `later` begins after the work that `earlier` already has.
void order(const c10::Stream& earlier, const c10::Stream& later) {
  c10::Event done(earlier.device_type());
  done.record(earlier);
  done.block(later);
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

// Bytes of the GPU's memory that this process could use now: free memory, and memory that libtorch keeps for later
// tensors.
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

// Total bytes of the GPU's memory.
int grpo_gpu_total(int index, uint64_t* bytes, char* error, size_t room) {
  return guarded(error, room, [&] {
#ifdef GRPO_CUDA
    *bytes = at::cuda::getDeviceProperties(gpu(index))->totalGlobalMem;
#else
    gpu(index);
    static_cast<void>(bytes);
#endif
  });
}

// Makes operations that may choose the order of a sum use a fixed one. An operation without a fixed order warns once:
// ending the run would be worse than a replay with other last bits. Uninitialised memory is not filled: everything here
// is written before it is read.
void grpo_compute_deterministically(int on) {
  at::globalContext().setDeterministicAlgorithms(on != 0, true);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

int grpo_computes_deterministically() { return at::globalContext().deterministicAlgorithms() ? 1 : 0; }

// Copies to pinned memory, beside the computation, after its work so far.
int grpo_host_copy(void* x, void** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    const at::Tensor& from = of(x);
    if (from.device().is_cpu()) {
      *out = new at::Tensor(from);
      return;
    }
    const c10::Stream side = copies(from.device());
    const at::Tensor host = at::empty(from.sizes(), from.options().device(at::kCPU).pinned_memory(true));
    order(computation(from.device()), side);
    {
      const c10::StreamGuard guard(side);
      host.copy_(from, true);
    }
    from.record_stream(side);
    *out = new at::Tensor(host);
  });
}

// Copies back to the GPU, beside the computation, after earlier copies. The computation may read the result after
// grpo_wait_for_copies.
int grpo_gpu_copy(void* x, int index, void** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    const at::Tensor& from = of(x);
    const c10::Device device(c10::DeviceType::CUDA, gpu(index));
    const c10::Stream side = copies(device);
    // Memory of the computation's stream, which reuses it in its own order: with memory of the side's, a process that is
    // layers ahead of its GPU would hold the inputs of all of them.
    const at::Tensor there = at::empty(from.sizes(), from.options().device(device).pinned_memory(false));
    order(computation(device), side);
    {
      const c10::StreamGuard guard(side);
      there.copy_(from, true);
    }
    there.record_stream(side);
    *out = new at::Tensor(there);
  });
}

// Makes the computation wait for the copies that have begun; the process does not wait.
int grpo_wait_for_copies(int index, char* error, size_t room) {
  return guarded(error, room, [&] {
    const c10::Device device(c10::DeviceType::CUDA, gpu(index));
    order(copies(device), computation(device));
  });
}

// Sends a host tensor to a GPU in the stream of the computation. The process does not wait: pinned memory is read while
// it continues.
int grpo_sent(void* x, int index, void** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    const at::Tensor& from = of(x);
    const c10::Device device(c10::DeviceType::CUDA, gpu(index));
    const at::Tensor pinned = at::empty(from.sizes(), from.options().pinned_memory(true));
    pinned.copy_(from);
    *out = new at::Tensor(pinned.to(device, /*non_blocking=*/true));
  });
}

}  // extern "C"
