// Compiles kernels.cu for the GPU at hand, once per process, and launches its kernels. NVRTC and the driver are loaded
// at first use: a trainer for CPUs has neither, and a trainer for GPUs brings libtorch's own NVRTC.

#include "kernels.h"

#include <cstdint>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#ifdef GRPO_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <cuda.h>
#include <dlfcn.h>

// kernels.cu as text (build.rs).
#include "kernels_source.h"
#endif

namespace kernels {

bool compute(const at::Tensor& x) {
  if (x.scalar_type() != at::kBFloat16 || x.dim() == 0 || x.size(-1) % 4 != 0 || x.numel() == 0) return false;
  if (x.is_meta()) return true;
#ifdef GRPO_CUDA
  if (!x.device().is_cuda()) return false;
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 8 == 0;
#else
  return false;
#endif
}

#ifdef GRPO_CUDA

namespace {

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error("the kernels of this trainer: " + what); }

// A library that is loaded at first use.
class Library {
 public:
  explicit Library(std::vector<std::string> names) : name_(names.front()) {
    for (const std::string& name : names) {
      if (handle_ == nullptr) handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    }
    if (handle_ == nullptr) fail(name_ + " cannot be loaded: it comes with PyTorch's CUDA libraries, whose folders LD_LIBRARY_PATH must name");
  }

  template <typename Function>
  Function find(const char* name) const {
    void* found = dlsym(handle_, name);
    if (found == nullptr) fail(name_ + " has no " + name);
    return reinterpret_cast<Function>(found);
  }

 private:
  std::string name_;
  void* handle_ = nullptr;
};

// Compiles the source to machine code for an architecture, such as sm_90.
std::vector<char> compiled(const std::string& architecture) {
  static const Library nvrtc({"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"});
  // nvrtcResult is an enumeration whose 0 is success, and nvrtcProgram a pointer: none of the header wheels that the
  // build takes has nvrtc.h.
  const auto create = nvrtc.find<int (*)(void**, const char*, const char*, int, const char* const*, const char* const*)>("nvrtcCreateProgram");
  const auto compile = nvrtc.find<int (*)(void*, int, const char* const*)>("nvrtcCompileProgram");
  const auto log_size = nvrtc.find<int (*)(void*, size_t*)>("nvrtcGetProgramLogSize");
  const auto log = nvrtc.find<int (*)(void*, char*)>("nvrtcGetProgramLog");
  const auto code_size = nvrtc.find<int (*)(void*, size_t*)>("nvrtcGetCUBINSize");
  const auto code = nvrtc.find<int (*)(void*, char*)>("nvrtcGetCUBIN");
  const auto destroy = nvrtc.find<int (*)(void**)>("nvrtcDestroyProgram");

  void* program = nullptr;
  if (create(&program, KERNELS_SOURCE, "kernels.cu", 0, nullptr, nullptr) != 0) fail("NVRTC does not take them");
  const std::string target = "--gpu-architecture=" + architecture;
  const char* const options[] = {target.c_str(), "--std=c++17"};
  const bool done = compile(program, 2, options) == 0;
  size_t size = 0;
  std::vector<char> answer;
  if (done && code_size(program, &size) == 0) {
    answer.resize(size);
    if (code(program, answer.data()) != 0) answer.clear();
  }
  std::string said;
  if (answer.empty() && log_size(program, &size) == 0) {
    said.resize(size);
    log(program, said.data());
  }
  destroy(&program);
  if (answer.empty()) fail("NVRTC does not compile them for " + architecture + " (sm_80 or newer is needed): " + said);
  return answer;
}

// The kernels of one GPU.
class Module {
 public:
  Module()
      : driver_({"libcuda.so.1"}),
        launch_(driver_.find<decltype(&cuLaunchKernel)>("cuLaunchKernel")),
        current_(driver_.find<decltype(&cuCtxGetCurrent)>("cuCtxGetCurrent")),
        make_current_(driver_.find<decltype(&cuCtxSetCurrent)>("cuCtxSetCurrent")) {
    // The context of libtorch's current device.
    const CUresult retained =
        driver_.find<CUresult (*)(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain")(&context_, static_cast<CUdevice>(at::cuda::current_device()));
    if (retained != CUDA_SUCCESS) fail("the GPU has no context: error " + std::to_string(retained));
    be_here();
    const auto* properties = at::cuda::getCurrentDeviceProperties();
    const std::vector<char> code = compiled("sm_" + std::to_string(properties->major) + std::to_string(properties->minor));
    const CUresult loaded = driver_.find<decltype(&cuModuleLoadData)>("cuModuleLoadData")(&module_, code.data());
    if (loaded != CUDA_SUCCESS) fail("the driver does not load them (580 or newer is needed): error " + std::to_string(loaded));
  }

  void launch(const std::string& name, unsigned blocks, unsigned threads, void** arguments) {
    be_here();
    CUfunction& function = functions_[name];
    if (function == nullptr) {
      const CUresult found = driver_.find<decltype(&cuModuleGetFunction)>("cuModuleGetFunction")(&function, module_, name.c_str());
      if (found != CUDA_SUCCESS) fail("there is no " + name + ": error " + std::to_string(found));
    }
    const auto stream = at::cuda::getCurrentCUDAStream().stream();
    const CUresult launched = launch_(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr);
    if (launched != CUDA_SUCCESS) fail(name + " cannot be launched: error " + std::to_string(launched));
  }

 private:
  // An autograd thread has no context until it calls CUDA's runtime, and a backward pass may begin with a kernel of
  // ours.
  void be_here() {
    CUcontext now = nullptr;
    if (current_(&now) == CUDA_SUCCESS && now == context_) return;
    const CUresult made = make_current_(context_);
    if (made != CUDA_SUCCESS) fail("the GPU's context cannot be made current: error " + std::to_string(made));
  }

  Library driver_;
  decltype(&cuLaunchKernel) launch_;
  decltype(&cuCtxGetCurrent) current_;
  decltype(&cuCtxSetCurrent) make_current_;
  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
  std::map<std::string, CUfunction> functions_;
};

}  // namespace

void launch_with(const char* name, int64_t blocks, int threads, void** arguments) {
  static std::mutex guard;
  // By device; never freed, because the driver may be gone when a process ends.
  static auto* modules = new std::map<int, Module>();
  const std::lock_guard<std::mutex> locked(guard);
  (*modules)[at::cuda::current_device()].launch(name, static_cast<unsigned>(blocks), static_cast<unsigned>(threads), arguments);
}

#else

void launch_with(const char* name, int64_t, int, void**) { throw std::runtime_error(std::string(name) + " needs a trainer built with CUDA"); }

#endif

}  // namespace kernels
