// Counts the bytes of libtorch's tensors on the CPU: an allocator in front of libtorch's own.

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include <c10/core/CPUAllocator.h>


namespace {

std::atomic<int64_t> now{0}, peak{0};

void add(int64_t bytes) {
  const int64_t sum = now.fetch_add(bytes) + bytes;
  int64_t most = peak.load();
  while (sum > most && !peak.compare_exchange_weak(most, sum)) {
  }
}

// Memory that libtorch frees without a tensor must have its own address as context, so sizes are kept separately.
std::mutex guard;
std::unordered_map<void*, int64_t> sizes;

void release(void* begin) {
  if (begin == nullptr) return;
  int64_t bytes = 0;
  {
    const std::lock_guard<std::mutex> locked(guard);
    const auto found = sizes.find(begin);
    if (found != sizes.end()) {
      bytes = found->second;
      sizes.erase(found);
    }
  }
  add(-bytes);
  c10::GetDefaultCPUAllocator()->raw_deallocate(begin);
}

struct Counter : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* begin = c10::GetDefaultCPUAllocator()->raw_allocate(bytes);
    if (begin != nullptr) {
      const std::lock_guard<std::mutex> locked(guard);
      sizes[begin] = static_cast<int64_t>(bytes);
      add(static_cast<int64_t>(bytes));
    }
    return {begin, begin, &release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

extern "C" {

// Counts every new tensor from now on, until the process ends.
void grpo_memory_count() {
  static Counter counter;
  c10::SetCPUAllocator(&counter, 255);
}

int64_t grpo_memory_now() { return now; }

int64_t grpo_memory_peak() { return peak; }

// Resets the peak to the bytes held now.
void grpo_memory_reset() { peak = now.load(); }

}  // extern "C"
