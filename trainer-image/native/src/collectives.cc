// The C face of libtorch's c10d: a meeting point (c10d's key-value store) and one process group over Gloo. Every function catches what c10d
// throws, copies the text into `error` (at most `room` bytes with the closing zero) and returns non-zero, so that no exception crosses into
// Rust.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "call.h"

namespace {

struct Meeting {
  c10::intrusive_ptr<c10d::Store> store;
};

struct Group {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
};

void copy(const char* from, size_t length, char* into, size_t room) {
  if (room == 0) return;
  length = std::min(length, room - 1);
  std::memcpy(into, from, length);
  into[length] = 0;
}

c10d::Store& at_meeting(void* meeting) { return *static_cast<Meeting*>(meeting)->store; }

}  // namespace

extern "C" {

int grpo_meeting_new(int rank, int world, const char* address, int port, int64_t timeout_ms, void** out, char* error,
                     size_t room) {
  return guarded(error, room, [&] {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(port);
    options.isServer = rank == 0;
    options.numWorkers = world;
    options.waitWorkers = false;
    options.timeout = std::chrono::milliseconds(timeout_ms);
    *out = new Meeting{c10::make_intrusive<c10d::TCPStore>(address, options)};
  });
}

void grpo_meeting_free(void* meeting) { delete static_cast<Meeting*>(meeting); }

int grpo_meeting_set(void* meeting, const char* key, const char* value, char* error, size_t room) {
  return guarded(error, room, [&] {
    at_meeting(meeting).set(key, std::vector<uint8_t>(value, value + std::strlen(value)));
  });
}

// `found` says whether there was a value. Does not wait for one.
int grpo_meeting_get(void* meeting, const char* key, int* found, char* value, size_t value_room, char* error,
                     size_t room) {
  return guarded(error, room, [&] {
    *found = at_meeting(meeting).check({key}) ? 1 : 0;
    if (*found == 0) return;
    const auto bytes = at_meeting(meeting).get(key);
    copy(reinterpret_cast<const char*>(bytes.data()), bytes.size(), value, value_room);
  });
}

int grpo_meeting_wait(void* meeting, const char* key, int64_t timeout_ms, char* error, size_t room) {
  return guarded(error, room,
                 [&] { at_meeting(meeting).wait({key}, std::chrono::milliseconds(timeout_ms)); });
}

int grpo_group_new(void* meeting, int rank, int world, const char* own_host, const char* interface, int64_t timeout_ms,
                   void** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    auto gloo = c10d::ProcessGroupGloo::Options::create(std::chrono::milliseconds(timeout_ms));
    if (*interface != 0) {
      gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(interface));
    } else if (*own_host != 0) {
      gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(own_host));
    } else {
      gloo->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
    }
    *out = new Group{c10::make_intrusive<c10d::ProcessGroupGloo>(static_cast<Meeting*>(meeting)->store, rank, world,
                                                                 gloo)};
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
