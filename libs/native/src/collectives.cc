// The C interface of libtorch's c10d: a rendezvous store (c10d's key-value store) and one process group, over Gloo for
// tensors on the CPU and, if compiled in, over NCCL for tensors on a GPU. Orders and counts are on the CPU, so they
// never wait for a GPU. NCCL's collectives are queued on NCCL's own stream, for which the current stream waits: a call
// returns before the collective ends, and work queued later sees its result. Every function catches c10d's exceptions,
// copies the text into `error` (at most `room` bytes with the closing zero) and returns non-zero, so that no exception
// crosses into Rust.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include "call.h"

namespace {

// c10d's recorder of past collectives is shared by the process and not safe if ranks are threads of one process, as in
// tests: it has crashed. We do not read it, so it is off unless the environment turns it on; c10d reads this variable
// once, at the first collective.
const int recorder_is_off = setenv("TORCH_FR_BUFFER_SIZE", "0", 0);

struct RendezvousStore {
  c10::intrusive_ptr<c10d::Store> store;
};

struct Group {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
#ifdef USE_C10D_NCCL
  c10::intrusive_ptr<c10d::Store> store;
  std::chrono::milliseconds gpu_timeout;
  // Created for the first tensor on a GPU: a group without GPUs must not ask for one. Shared with graphs that outlive
  // the group.
  std::shared_ptr<c10::intrusive_ptr<c10d::ProcessGroupNCCL>> nccl =
      std::make_shared<c10::intrusive_ptr<c10d::ProcessGroupNCCL>>();
#endif

  // The backend for this tensor.
  c10d::Backend& carrier(const at::Tensor& x) {
    if (!x.is_cuda()) return *gloo;
#ifdef USE_C10D_NCCL
    if (!*nccl) {
      auto options = c10d::ProcessGroupNCCL::Options::create();
      options->timeout = gpu_timeout;
      *nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::make_intrusive<c10d::PrefixStore>("nccl", store),
                                                          gloo->getRank(), gloo->getSize(), options);
    }
    return **nccl;
#else
    throw std::runtime_error("this trainer is built without NCCL, and the tensor is on a GPU");
#endif
  }
};

void copy(const char* from, size_t length, char* into, size_t room) {
  if (room == 0) return;
  length = std::min(length, room - 1);
  std::memcpy(into, from, length);
  into[length] = 0;
}

// A collective under way, with the tensors that it reads and writes, and the local work that remains after all parts
// have arrived.
struct PendingCollective {
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  std::vector<at::Tensor> held;
  std::function<void()> finish;

  void wait() {
    for (const auto& work : works) work->wait();
    if (finish) finish();
  }
};

// Gloo's own all-gather and reduce-scatter use whole copies, the latter of a whole sum on every rank. So here every
// rank's part is broadcast into its place, and in reduce-scatter parts are sent to the rank that sums them, in the
// order of the ranks. NCCL's own collectives have no such cost.
PendingCollective gather(Group& group, at::Tensor& whole, at::Tensor& part) {
  if (part.is_cuda()) return {{group.carrier(part)._allgather_base(whole, part)}, {whole, part}, {}};
  const int64_t own = group.gloo->getRank(), n = part.numel();
  PendingCollective pending{{}, {whole, part}, {}};
  whole.narrow(0, own * n, n).copy_(part);
  for (int64_t rank = 0; rank < group.gloo->getSize(); ++rank) {
    std::vector<at::Tensor> place{whole.narrow(0, rank * n, n)};
    c10d::BroadcastOptions options;
    options.rootRank = static_cast<int>(rank);
    pending.works.push_back(group.gloo->broadcast(place, options));
  }
  return pending;
}

PendingCollective reduce_scatter(Group& group, at::Tensor& part, at::Tensor& whole) {
  if (whole.is_cuda()) return {{group.carrier(whole)._reduce_scatter_base(part, whole)}, {part, whole}, {}};
  at::Tensor arrived = at::empty_like(whole);
  std::vector<int64_t> equal;
  auto work = group.gloo->alltoall_base(arrived, whole, equal, equal);
  auto sum = [part = at::Tensor(part), arrived, ranks = group.gloo->getSize()]() mutable {
    at::NoGradGuard no_grad;
    at::sum_out(part, arrived.view({ranks, -1}), at::IntArrayRef{0});
  };
  return {{work}, {part, whole, arrived}, sum};
}

// A graph's handle on a group to exchange tensors in backward, for as long as the graph lives. `note` is called for
// every exchange: 0 it begins, 1 it is done, 2 it failed, with the text. After a failure nothing is exchanged any more,
// and the missing data are zeros.
struct Exchange : torch::CustomClassHolder {
  Group group;
  void* context;
  void (*note)(void* context, int event, const char* text);
  void (*drop)(void* context);
  std::atomic<bool> failed{false};

  ~Exchange() override { drop(context); }

  at::Tensor swap(const at::Tensor& x) {
    const at::Tensor from = x.contiguous();
    if (failed) return at::zeros_like(from);
    at::Tensor into = at::empty_like(from);
    note(context, 0, "");
    try {
      std::vector<int64_t> equal;
      group.carrier(from).alltoall_base(into, const_cast<at::Tensor&>(from), equal, equal)->wait();
    } catch (const std::exception& e) {
      failed = true;
      note(context, 2, e.what());
      return at::zeros_like(from);
    }
    note(context, 1, "");
    return into;
  }
};

// Block j goes to rank j, and rank j's data arrive as block j. The gradient returns by the same exchange.
struct AllToAll : torch::autograd::Function<AllToAll> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const c10::intrusive_ptr<Exchange>& exchange) {
    ctx->saved_data["exchange"] = c10::IValue::make_capsule(exchange);
    return exchange->swap(x);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& above) {
    const auto capsule = ctx->saved_data["exchange"].toCapsule();
    return {static_cast<Exchange*>(capsule.get())->swap(above[0]), torch::autograd::Variable()};
  }
};

c10d::Store& store_of(void* store) { return *static_cast<RendezvousStore*>(store)->store; }

}  // namespace

extern "C" {

// `opens`: whether this process keeps the store. Others connect to it, and so may this process again.
int grpo_store_new(int rank, int world, int opens, const char* address, int port, int64_t timeout_ms, void** out,
                   char* error, size_t room) {
  return guarded(error, room, [&] {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(port);
    options.isServer = opens != 0;
    options.numWorkers = world;
    options.waitWorkers = false;
    options.timeout = std::chrono::milliseconds(timeout_ms);
    *out = new RendezvousStore{c10::make_intrusive<c10d::TCPStore>(address, options)};
  });
}

void grpo_store_free(void* store) { delete static_cast<RendezvousStore*>(store); }

int grpo_store_set(void* store, const char* key, const char* value, char* error, size_t room) {
  return guarded(error, room, [&] {
    store_of(store).set(key, std::vector<uint8_t>(value, value + std::strlen(value)));
  });
}

// `found`: whether there was a value. Does not wait for one.
int grpo_store_get(void* store, const char* key, int* found, char* value, size_t value_room, char* error,
                     size_t room) {
  return guarded(error, room, [&] {
    *found = store_of(store).check({key}) ? 1 : 0;
    if (*found == 0) return;
    const auto bytes = store_of(store).get(key);
    copy(reinterpret_cast<const char*>(bytes.data()), bytes.size(), value, value_room);
  });
}

int grpo_store_wait(void* store, const char* key, int64_t timeout_ms, char* error, size_t room) {
  return guarded(error, room,
                 [&] { store_of(store).wait({key}, std::chrono::milliseconds(timeout_ms)); });
}

// `gpu_timeout_ms`: the deadline after which NCCL's watchdog ends the process by SIGABRT.
int grpo_group_new(void* rendezvous, int rank, int world, const char* own_host, const char* interface, int64_t timeout_ms,
                   int64_t gpu_timeout_ms, void** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    auto gloo = c10d::ProcessGroupGloo::Options::create(std::chrono::milliseconds(timeout_ms));
    if (*interface != 0) {
      gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(interface));
    } else if (*own_host != 0) {
      gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(own_host));
    } else {
      gloo->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
    }
    auto group = std::make_unique<Group>();
    const auto& store = static_cast<RendezvousStore*>(rendezvous)->store;
#ifdef USE_C10D_NCCL
    group->store = store;
    group->gpu_timeout = std::chrono::milliseconds(gpu_timeout_ms);
#else
    static_cast<void>(gpu_timeout_ms);
#endif
    group->gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, world, gloo);
    *out = group.release();
  });
}

void grpo_group_free(void* group) { delete static_cast<Group*>(group); }

// The same store with separate keys for a group of some of the ranks.
int grpo_store_part(void* store, const char* name, void** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    *out = new RendezvousStore{c10::make_intrusive<c10d::PrefixStore>(name, static_cast<RendezvousStore*>(store)->store)};
  });
}

int grpo_all_reduce_sum(void* group, void* tensor, char* error, size_t room) {
  return guarded(error, room, [&] {
    std::vector<at::Tensor> tensors{of(tensor)};
    static_cast<Group*>(group)->carrier(of(tensor)).allreduce(tensors)->wait();
  });
}

int grpo_broadcast(void* group, void* tensor, int root, char* error, size_t room) {
  return guarded(error, room, [&] {
    std::vector<at::Tensor> tensors{of(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    static_cast<Group*>(group)->carrier(of(tensor)).broadcast(tensors, options)->wait();
  });
}

int grpo_barrier(void* group, char* error, size_t room) {
  return guarded(error, room, [&] { static_cast<Group*>(group)->gloo->barrier()->wait(); });
}

// Both return at once; grpo_pending_wait waits for the collective and frees it.
int grpo_start_all_gather(void* group, void* output, void* input, void** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    *out = new PendingCollective(gather(*static_cast<Group*>(group), of(output), of(input)));
  });
}

int grpo_start_reduce_scatter_sum(void* group, void* output, void* input, void** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    *out = new PendingCollective(reduce_scatter(*static_cast<Group*>(group), of(output), of(input)));
  });
}

int grpo_pending_wait(void* pending, char* error, size_t room) {
  return guarded(error, room, [&] { static_cast<PendingCollective*>(pending)->wait(); });
}

void grpo_pending_free(void* pending) { delete static_cast<PendingCollective*>(pending); }

// Takes `context`, which `drop` frees when the last graph is gone. `note` may be called from any thread.
int grpo_exchange_new(void* group, void* context, void (*note)(void*, int, const char*), void (*drop)(void*), void** out,
                      char* error, size_t room) {
  return guarded(error, room, [&] {
    auto exchange = c10::make_intrusive<Exchange>();
    exchange->group = *static_cast<Group*>(group);
    exchange->context = context;
    exchange->note = note;
    exchange->drop = drop;
    *out = new c10::intrusive_ptr<Exchange>(std::move(exchange));
  });
}

void grpo_exchange_free(void* exchange) { delete static_cast<c10::intrusive_ptr<Exchange>*>(exchange); }

// x: [world, ..]. The result has its shape.
int grpo_all_to_all(void* exchange, void* x, void** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    *out = new at::Tensor(AllToAll::apply(of(x), *static_cast<c10::intrusive_ptr<Exchange>*>(exchange)));
  });
}

}  // extern "C"
