// Computes a tree's pieces with as few calls as possible. One call of the flash kernel for sequences of different
// lengths takes all causal pieces; each further call takes as many other pieces as have consecutive queries and keys.
// If the process need not repeat its bits, cuDNN computes long causal pieces: its kernels use a Hopper GPU's features
// and are twice as fast, but their backward pass sums in any order.
//
// In forward, a kernel of our own merges the parts of one query; in backward, each call gets the merged result
// (attention.cc).

#include "flash.h"

#include <algorithm>
#include <list>
#include <optional>

#include "kernels.h"

#ifdef GRPO_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

namespace {

using at::Tensor;

// If the process computes deterministically (device.cc), the flash kernel's backward does so only while libtorch is set
// to fail for operations that cannot; with warnings only, it does not.
class Strictly {
 public:
  Strictly() : warned_(at::globalContext().deterministicAlgorithmsWarnOnly()) { set(false); }
  ~Strictly() { set(warned_); }
  Strictly(const Strictly&) = delete;
  Strictly& operator=(const Strictly&) = delete;

 private:
  static void set(bool warn_only) {
    if (at::globalContext().deterministicAlgorithms()) at::globalContext().setDeterministicAlgorithms(true, warn_only);
  }
  bool warned_;
};

// LONG: fewest tokens of a causal piece that cuDNN computes. STEP: their number is rounded up to a multiple of this,
// because cuDNN makes and keeps a plan for each length, which takes longer than a short piece is worth.
constexpr int64_t LONG = 4096, STEP = 1024;

// Pieces that one call computes: consecutive sequences of queries and of keys, from the first token to the last. A gap
// between two pieces is a sequence of queries without keys, or of keys without queries.
struct Call {
  // Whether this is one long causal piece, computed by cuDNN: then of the fields below only `pieces` is set.
  bool alone = false;
  bool causal = false;
  // Ends of the sequences, [sequences + 1] int32 on the device.
  Tensor queries, keys;
  // Lengths of the longest sequences, gaps included.
  int64_t most_queries = 0, most_keys = 0;
  std::vector<Piece> pieces;
};

Call call_of(std::vector<Piece> pieces, int64_t n, const at::Device& device) {
  std::vector<int32_t> queries{0}, keys{0};
  const auto until = [&](int64_t query, int64_t key) {
    if (query == queries.back() && key == keys.back()) return;
    queries.push_back(static_cast<int32_t>(query));
    keys.push_back(static_cast<int32_t>(key));
  };
  for (const Piece& p : pieces) {
    until(p.query, keys.back());
    until(p.query, p.key);
    until(p.query + p.queries, p.key + p.keys);
  }
  until(n, keys.back());
  until(n, n);
  Call call;
  for (size_t i = 1; i < queries.size(); ++i) {
    call.most_queries = std::max<int64_t>(call.most_queries, queries[i] - queries[i - 1]);
    call.most_keys = std::max<int64_t>(call.most_keys, keys[i] - keys[i - 1]);
  }
  // For single queries the kernel takes another code path, in which a sequence without queries fails.
  call.most_queries = std::max<int64_t>(call.most_queries, 2);
  call.causal = pieces.front().causal;
  // From pinned memory, so that the host does not wait: the stream may be waiting for another rank.
  const auto there = [&](const std::vector<int32_t>& ends) { return at::tensor(ends, at::kInt).pin_memory().to(device, at::kInt, true); };
  call.queries = there(queries);
  call.keys = there(keys);
  call.pieces = std::move(pieces);
  return call;
}

// Whether cuDNN computes causal pieces of these tensors.
bool by_cudnn(const Tensor& q) {
#ifdef GRPO_CUDA
  return !at::globalContext().deterministicAlgorithms() && at::cuda::getCurrentDeviceProperties()->major >= 9 && (q.size(2) == 64 || q.size(2) == 128);
#else
  static_cast<void>(q);
  return false;
#endif
}

// Causal calls come first. Together they contain every token's query once.
std::vector<Call> calls_of(std::vector<Piece> pieces, const Tensor& q, bool cudnn) {
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::make_tuple(!a.causal, a.query, a.key) < std::make_tuple(!b.causal, b.query, b.key);
  });
  std::vector<Call> calls;
  std::vector<std::vector<Piece>> together;
  for (const Piece& p : pieces) {
    if (cudnn && p.causal && p.queries >= LONG) {
      Call call;
      call.alone = call.causal = true;
      call.pieces = {p};
      calls.push_back(std::move(call));
      continue;
    }
    const auto room = std::find_if(together.begin(), together.end(), [&](const std::vector<Piece>& others) {
      const Piece& last = others.back();
      return last.causal == p.causal && last.query + last.queries <= p.query && last.key + last.keys <= p.key;
    });
    if (room == together.end()) {
      together.push_back({p});
    } else {
      room->push_back(p);
    }
  }
  for (auto& one : together) calls.push_back(call_of(std::move(one), q.size(0), q.device()));
  // The call of many causal pieces writes all tokens, so it comes before those that write their own.
  std::stable_sort(calls.begin(), calls.end(), [](const Call& a, const Call& b) {
    return std::make_tuple(!a.causal, a.alone) < std::make_tuple(!b.causal, b.alone);
  });
  return calls;
}

// Every block of a model has the same pieces, forward and backward, and each block is computed for all micro-batches in
// turn: each thread keeps the calls of the last layouts.
const std::vector<Call>& calls_for(const std::vector<int64_t>& flat, const Tensor& q) {
  struct Made {
    std::vector<int64_t> flat;
    int64_t n = 0;
    bool cudnn = false;
    std::optional<at::Device> device;
    std::vector<Call> calls;
  };
  constexpr size_t KEPT = 64;
  thread_local std::list<Made> made;
  const bool cudnn = by_cudnn(q);
  for (const Made& one : made) {
    if (one.n == q.size(0) && one.cudnn == cudnn && one.device == q.device() && one.flat == flat) return one.calls;
  }
  if (made.size() >= KEPT) made.pop_front();
  made.push_back(Made{flat, q.size(0), cudnn, q.device(), calls_of(pieces_of(flat), q, cudnn)});
  return made.back().calls;
}

// Tokens [begin, begin + count) of x: [n, heads, d] as [1, heads, padded, d], with zeros at the end.
Tensor padded(const Tensor& x, int64_t begin, int64_t count) {
  const Tensor own = x.narrow(0, begin, count);
  const int64_t whole = (count + STEP - 1) / STEP * STEP;
  if (whole == count) return own.unsqueeze(0).transpose(1, 2);
  const Tensor all = at::empty({1, whole, x.size(1), x.size(2)}, x.options());
  all[0].narrow(0, 0, count).copy_(own);
  all[0].narrow(0, count, whole - count).zero_();
  return all.transpose(1, 2);
}

// [1, heads, padded, d] as [count, heads, d].
Tensor shortened(const Tensor& x, int64_t count) { return x.squeeze(0).transpose(0, 1).narrow(0, 0, count); }

// A causal piece's output [queries, heads, d] and logarithms [heads, queries]. Queries do not see the padding, which is
// at the end.
std::pair<Tensor, Tensor> cudnn_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Piece& p) {
  const Tensor queries = padded(q, p.query, p.queries);
  const int64_t whole = queries.size(2);
  const auto answer = at::_cudnn_attention_forward(queries, padded(k, p.key, p.keys), padded(v, p.key, p.keys), std::nullopt, std::nullopt, std::nullopt,
                                                   whole, whole, true, 0.0, true, false);
  return {shortened(std::get<0>(answer), p.queries), std::get<1>(answer).view({q.size(1), whole}).narrow(1, 0, p.queries)};
}

// Zeros in queries, output and its gradient after the last token add nothing: their probabilities are 1, their
// gradients 0.
std::tuple<Tensor, Tensor, Tensor> cudnn_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                                  const Tensor& lse, const Piece& p) {
  const Tensor queries = padded(q, p.query, p.queries);
  const int64_t whole = queries.size(2);
  const Tensor logarithms = at::zeros({1, q.size(1), whole, 1}, lse.options());
  logarithms.view({q.size(1), whole}).narrow(1, 0, p.queries).copy_(lse.narrow(1, p.query, p.queries));
  // There is no dropout, so no random numbers to repeat.
  const Tensor none = at::zeros({}, q.options().dtype(at::kLong));
  const auto answer = at::_cudnn_attention_backward(padded(dout, p.query, p.queries), queries, padded(k, p.key, p.keys), padded(v, p.key, p.keys),
                                                    padded(out, p.query, p.queries), logarithms, none, none, Tensor(), Tensor(), Tensor(), whole, whole,
                                                    0.0, true);
  return {shortened(std::get<0>(answer), p.queries), shortened(std::get<1>(answer), p.keys), shortened(std::get<2>(answer), p.keys)};
}

}  // namespace

std::vector<Piece> pieces_of(const std::vector<int64_t>& flat) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i + 5 <= flat.size(); i += 5) {
    pieces.push_back({flat[i], flat[i + 1], flat[i + 2], flat[i + 3], flat[i + 4] != 0});
  }
  return pieces;
}

namespace flash {

bool computes(const Tensor& q) { return kernels::compute(q); }

std::pair<Tensor, Tensor> forward(const Tensor& q, const Tensor& k, const Tensor& v, const std::vector<int64_t>& pieces) {
  const int64_t n = q.size(0), heads = q.size(1), d = q.size(2);
  Tensor out, lse, sum;
  for (const Call& call : calls_for(pieces, q)) {
    if (call.alone) {
      const Piece& p = call.pieces.front();
      const auto [part, part_lse] = cudnn_forward(q, k, v, p);
      if (!out.defined() && p.queries == n) {
        out = part.contiguous(), lse = part_lse.contiguous();
        continue;
      }
      if (!out.defined()) out = at::empty_like(q), lse = at::empty({heads, n}, q.options().dtype(at::kFloat));
      out.narrow(0, p.query, p.queries).copy_(part);
      lse.narrow(1, p.query, p.queries).copy_(part_lse);
      continue;
    }
    const auto answer = at::_flash_attention_forward(q, k, v, call.queries, call.keys, call.most_queries, call.most_keys, 0.0, call.causal, false);
    const Tensor part = std::get<0>(answer).contiguous(), part_lse = std::get<1>(answer).contiguous();
    if (call.causal) {
      out = part, lse = part_lse;
      continue;
    }
    if (!sum.defined()) sum = out.to(at::kFloat);
    kernels::launch("merge", kernels::blocks_for(n * heads * d / 4, kernels::THREADS), kernels::THREADS, kernels::in(part), kernels::in<float>(part_lse),
                    kernels::out<float>(sum), kernels::in<float>(lse), static_cast<long long>(n), static_cast<int>(heads), static_cast<int>(d));
    kernels::launch("merge_lse", kernels::blocks_for(n * heads, kernels::THREADS), kernels::THREADS, kernels::in<float>(part_lse),
                    kernels::out<float>(lse), static_cast<long long>(n * heads));
  }
  return {sum.defined() ? sum.to(q.scalar_type()) : out, lse};
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                                            const std::vector<int64_t>& pieces) {
  const Tensor none = at::zeros({2}, q.options().dtype(at::kUInt64));
  const Strictly strictly;
  // In bf16 until a second part is added.
  Tensor dq, dk, dv;
  for (const Call& call : calls_for(pieces, q)) {
    if (call.alone) {
      const Piece& p = call.pieces.front();
      const auto [part_q, part_k, part_v] = cudnn_backward(dout, q, k, v, out, lse, p);
      if (!dq.defined() && p.queries == q.size(0)) {
        dq = part_q.contiguous(), dk = part_k.contiguous(), dv = part_v.contiguous();
        continue;
      }
      if (!dq.defined()) dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
      dq.narrow(0, p.query, p.queries).copy_(part_q);
      dk.narrow(0, p.key, p.keys).copy_(part_k);
      dv.narrow(0, p.key, p.keys).copy_(part_v);
      continue;
    }
    const auto [part_q, part_k, part_v] = at::_flash_attention_backward(dout, q, k, v, out, lse, call.queries, call.keys, call.most_queries,
                                                                        call.most_keys, 0.0, call.causal, none, Tensor());
    if (call.causal) {
      dq = part_q, dk = part_k, dv = part_v;
      continue;
    }
    for (Tensor* sum : {&dq, &dk, &dv}) *sum = sum->to(at::kFloat);
    // Outside of its pieces a call's result has no meaning.
    for (const Piece& p : call.pieces) {
      dq.narrow(0, p.query, p.queries).add_(part_q.narrow(0, p.query, p.queries));
      dk.narrow(0, p.key, p.keys).add_(part_k.narrow(0, p.key, p.keys));
      dv.narrow(0, p.key, p.keys).add_(part_v.narrow(0, p.key, p.keys));
    }
  }
  const auto kind = q.scalar_type();
  return {dq.to(kind), dk.to(kind), dv.to(kind)};
}

}  // namespace flash
