// The GPU of a rank and its memory, and copies of tensors between it and the host.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#ifdef GRPO_CUDA
#include <dlfcn.h>

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

// A tensor of the host in page-locked memory of its exact size. libtorch's own pinned memory has the next power of two,
// up to twice as much, and a pod has a limit.
at::Tensor locked(at::IntArrayRef size, const at::TensorOptions& options) {
#ifdef GRPO_CUDA
  // The CUDA runtime is libtorch's; this library is not linked to it.
  static const auto lock = reinterpret_cast<int (*)(void*, size_t, unsigned)>(dlsym(RTLD_DEFAULT, "cudaHostRegister"));
  static const auto unlock = reinterpret_cast<int (*)(void*)>(dlsym(RTLD_DEFAULT, "cudaHostUnregister"));
  static const auto finish = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "cudaDeviceSynchronize"));
  static const auto forget_error = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "cudaGetLastError"));
  if (lock == nullptr || unlock == nullptr || finish == nullptr || forget_error == nullptr) {
    throw std::runtime_error("libtorch's CUDA runtime has no cudaHostRegister");
  }
  constexpr size_t PAGE = 4096;
  const size_t bytes = c10::multiply_integers(size) * options.dtype().itemsize(), pages = (bytes + PAGE - 1) / PAGE * PAGE;
  void* const place = std::aligned_alloc(PAGE, pages);
  if (place == nullptr) throw std::runtime_error("the host has no " + std::to_string(pages) + " bytes for it");
  const int error = lock(place, pages, 0);
  if (error != 0) {
    // Otherwise libtorch's next launch finds it.
    forget_error();
    std::free(place);
    throw std::runtime_error(std::to_string(pages) + " bytes of the host cannot be locked: CUDA's error " + std::to_string(error));
  }
  // libtorch does not know this memory, so it does not wait for copies from it or to it.
  const auto release = [](void* place) {
    finish();
    if (unlock(place) != 0) forget_error();
    std::free(place);
  };
  return at::from_blob(place, size, release, options);
#else
  static_cast<void>(size);
  static_cast<void>(options);
  throw std::runtime_error("this trainer is built without CUDA");
#endif
}

enum class To { HOST, GPU };

// The stream of a thread's copies in one direction between a GPU and the pod's memory: they run beside the computation,
// and beside copies in the other direction.
c10::Stream copies(c10::Device device, To to) {
  static thread_local std::map<std::pair<c10::DeviceIndex, To>, c10::Stream> streams;
  const std::pair<c10::DeviceIndex, To> key{device.index(), to};
  const auto found = streams.find(key);
  if (found != streams.end()) return found->second;
  const c10::Stream made = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  return streams.emplace(key, made).first->second;
}

// Later work on `later` begins after the work that `earlier` already has.
void order(const c10::Stream& earlier, const c10::Stream& later) {
  c10::Event done(earlier.device_type());
  done.record(earlier);
  done.block(later);
}

// Copies to the host beside the computation, after its work so far.
void start_host_copy(const at::Tensor& from, const at::Tensor& host) {
  const c10::Stream side = copies(from.device(), To::HOST);
  order(computation(from.device()), side);
  {
    const c10::StreamGuard guard(side);
    host.copy_(from, true);
  }
  from.record_stream(side);
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

// Most bytes of tensors on the GPU since the last call, which resets it; freed ones count until their last stream is
// done.
int grpo_gpu_peak(int index, uint64_t* bytes, char* error, size_t room) {
  return guarded(error, room, [&] {
#ifdef GRPO_CUDA
    const c10::DeviceIndex device = gpu(index);
    c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(c10::DeviceType::CUDA);
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    *bytes = static_cast<uint64_t>(allocator->getDeviceStats(device).active_bytes[all].peak);
    allocator->resetPeakStats(device);
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

// Waits for the GPU's work, and gives the memory that no tensor holds back to the GPU: libtorch's blocks for later
// tensors, and cuBLAS's workspaces, which are made again when they are needed. Contexts, loaded kernels and NCCL's
// buffers stay.
int grpo_return_gpu_memory(int index, char* error, size_t room) {
  return guarded(error, room, [&] {
#ifdef GRPO_CUDA
    c10::cuda::set_device(gpu(index));
    c10::cuda::device_synchronize();
    at::cuda::clearCublasWorkspaces();
    c10::getDeviceAllocator(c10::DeviceType::CUDA)->emptyCache();
#else
    gpu(index);
#endif
  });
}

// Gives the free pages of the process's heaps back to the system. Only glibc keeps them.
void grpo_return_host_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
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
    const at::Tensor host = at::empty(from.sizes(), from.options().device(at::kCPU).pinned_memory(true));
    start_host_copy(from, host);
    *out = new at::Tensor(host);
  });
}

// Copies into a tensor of the host, which is in pinned memory, beside the computation, after its work so far. The host
// may read it after grpo_finish_host_copies.
int grpo_copy_into_host(void* x, void* host, char* error, size_t room) {
  return guarded(error, room, [&] { start_host_copy(of(x), of(host)); });
}

// Waits for the copies to the host that have begun.
int grpo_finish_host_copies(int index, char* error, size_t room) {
  return guarded(error, room, [&] { copies(c10::Device(c10::DeviceType::CUDA, gpu(index)), To::HOST).synchronize(); });
}

// The same values in pinned memory, from which copies to a GPU run beside the computation.
int grpo_pinned(void* x, void** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    const at::Tensor& from = of(x);
    const bool is_there = from.device().is_cpu() && from.is_pinned();
    const at::Tensor host = is_there || from.numel() == 0 ? from.cpu() : locked(from.sizes(), from.options().device(at::kCPU));
    if (!is_there) host.copy_(from);
    *out = new at::Tensor(host);
  });
}

// Copies back to the GPU, beside the computation, after earlier copies. The computation may read the result after
// grpo_wait_for_copies.
int grpo_gpu_copy(void* x, int index, void** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    const at::Tensor& from = of(x);
    const c10::Device device(c10::DeviceType::CUDA, gpu(index));
    const c10::Stream side = copies(device, To::GPU);
    // Memory of the computation's stream, which reuses it in its own order: if the side's stream held it too, a process
    // that is layers ahead of its GPU would hold the inputs of all of them. So the computation must wait for the copy,
    // whether it reads it or not.
    const at::Tensor there = at::empty(from.sizes(), from.options().device(device).pinned_memory(false));
    order(computation(device), side);
    // What is copied back may still be on its way to the host.
    order(copies(device, To::HOST), side);
    {
      const c10::StreamGuard guard(side);
      there.copy_(from, true);
    }
    *out = new at::Tensor(there);
  });
}

// Makes the computation wait for the copies to the GPU that have begun; the process does not wait.
int grpo_wait_for_copies(int index, char* error, size_t room) {
  return guarded(error, room, [&] {
    const c10::Device device(c10::DeviceType::CUDA, gpu(index));
    order(copies(device, To::GPU), computation(device));
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
