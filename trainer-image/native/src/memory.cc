// Counts the bytes of libtorch's tensors on the CPU: an allocator in front of libtorch's own.

#include <atomic>
#include <cstdint>

#include <c10/core/CPUAllocator.h>


namespace {

std::atomic<int64_t> now{0}, peak{0};

void add(int64_t bytes) {
  const int64_t sum = now.fetch_add(bytes) + bytes;
  int64_t most = peak.load();
  while (sum > most && !peak.compare_exchange_weak(most, sum)) {
  }
}

struct Counted {
  c10::DataPtr data;
  int64_t bytes;
};

void release(void* counted) {
  auto* whole = static_cast<Counted*>(counted);
  add(-whole->bytes);
  delete whole;
}

struct Counter : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = c10::GetDefaultCPUAllocator()->allocate(bytes);
    void* begin = data.get();
    add(static_cast<int64_t>(bytes));
    auto* counted = new Counted{std::move(data), static_cast<int64_t>(bytes)};
    return {begin, counted, &release, c10::Device(c10::DeviceType::CPU)};
  }

  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

extern "C" {

// From here on every new tensor is counted, until the process ends.
void grpo_memory_count() {
  static Counter counter;
  c10::SetCPUAllocator(&counter, 255);
}

int64_t grpo_memory_now() { return now; }

int64_t grpo_memory_peak() { return peak; }

// Begins a new peak at what is held now.
void grpo_memory_reset() { peak = now.load(); }

}  // extern "C"
