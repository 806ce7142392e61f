// Work that a GPU did: kernels, copies and fills, as CUPTI reports them to libtorch's profiler (Kineto).

#include <cstdint>
#include <exception>
#include <set>
#include <stdexcept>

#include "call.h"

#ifdef GRPO_CUDA
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/autograd/profiler_kineto.h>

namespace {

using torch::profiler::impl::ActivityType;

const std::set<ActivityType>& activities() {
  static const std::set<ActivityType> all{ActivityType::CPU, ActivityType::CUDA};
  return all;
}

}  // namespace
#endif

extern "C" {

int grpo_profile_begin(char* error, size_t room) {
  return guarded(error, room, [&] {
#ifdef GRPO_CUDA
    const torch::profiler::impl::ProfilerConfig how(torch::profiler::impl::ProfilerState::KINETO);
    c10::cuda::device_synchronize();
    torch::autograd::profiler::prepareProfiler(how, activities());
    torch::autograd::profiler::enableProfiler(how, activities());
#else
    throw std::runtime_error("this trainer is built without CUDA");
#endif
  });
}

// Waits for the GPU, and passes on each piece of its work: its name, its beginning and its duration in nanoseconds.
int grpo_profile_end(void (*each)(void* into, const char* name, uint64_t begin, uint64_t nanos), void* into, char* error, size_t room) {
  return guarded(error, room, [&] {
#ifdef GRPO_CUDA
    std::exception_ptr failed;
    try {
      c10::cuda::device_synchronize();
    } catch (...) {
      failed = std::current_exception();
    }
    const auto result = torch::autograd::profiler::disableProfiler();
    if (failed) std::rethrow_exception(failed);
    for (const auto& event : result->events()) {
      if (event.deviceType() == c10::DeviceType::CUDA) each(into, event.name().c_str(), event.startNs(), event.durationNs());
    }
#else
    static_cast<void>(each);
    static_cast<void>(into);
    throw std::runtime_error("this trainer is built without CUDA");
#endif
  });
}

}  // extern "C"
