// The C face of libtorch's c10d: one process group over Gloo. Every function catches what c10d throws, copies the text into `error`
// (at most `room` bytes with the closing zero) and returns non-zero, so that no exception crosses into Rust.

#include <chrono>
#include <cstring>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace {

struct Group {
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
};

template <typename F>
int guarded(char* error, size_t room, F&& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& e) {
    if (room > 0) {
      std::strncpy(error, e.what(), room - 1);
      error[room - 1] = 0;
    }
    return 1;
  }
}

at::Tensor& of(void* tensor) { return *reinterpret_cast<at::Tensor*>(tensor); }

}  // namespace

extern "C" {

int grpo_group_new(int rank, int world, const char* address, int port, const char* own_host, int64_t timeout_ms,
                   void** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    const auto timeout = std::chrono::milliseconds(timeout_ms);
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(port);
    options.isServer = rank == 0;
    options.numWorkers = world;
    options.waitWorkers = false;
    options.timeout = timeout;
    auto group = new Group;
    try {
      group->store = c10::make_intrusive<c10d::TCPStore>(address, options);
      auto gloo = c10d::ProcessGroupGloo::Options::create(timeout);
      gloo->devices.push_back(*own_host != 0 ? c10d::ProcessGroupGloo::createDeviceForHostname(own_host)
                                             : c10d::ProcessGroupGloo::createDefaultDevice());
      group->gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(group->store, rank, world, gloo);
    } catch (...) {
      delete group;
      throw;
    }
    *out = group;
  });
}

void grpo_group_free(void* group) { delete static_cast<Group*>(group); }

int grpo_all_reduce_sum(void* group, void* tensor, char* error, size_t room) {
  return guarded(error, room, [&] {
    std::vector<at::Tensor> tensors{of(tensor)};
    static_cast<Group*>(group)->gloo->allreduce(tensors)->wait();
  });
}

int grpo_broadcast(void* group, void* tensor, int root, char* error, size_t room) {
  return guarded(error, room, [&] {
    std::vector<at::Tensor> tensors{of(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    static_cast<Group*>(group)->gloo->broadcast(tensors, options)->wait();
  });
}

int grpo_all_gather(void* group, void* output, void* input, char* error, size_t room) {
  return guarded(error, room, [&] {
    static_cast<Group*>(group)->gloo->_allgather_base(of(output), of(input))->wait();
  });
}

int grpo_reduce_scatter_sum(void* group, void* output, void* input, char* error, size_t room) {
  return guarded(error, room, [&] {
    static_cast<Group*>(group)->gloo->_reduce_scatter_base(of(output), of(input))->wait();
  });
}

int grpo_barrier(void* group, char* error, size_t room) {
  return guarded(error, room, [&] { static_cast<Group*>(group)->gloo->barrier()->wait(); });
}

}  // extern "C"
