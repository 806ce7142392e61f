// Computes a tree's pieces with as few calls as possible. One call of the flash kernel for sequences of different
// lengths takes all causal pieces; each further call takes as many other pieces as have consecutive queries and keys.
// If the process need not repeat its bits, cuDNN computes long pieces: its kernels use a Hopper GPU's features and are
// twice as fast, but their backward pass sums in any order.
//
// In forward, kernels of our own merge the parts of one query; in backward, each call gets the merged result
// (attention.cc). In a group of samples of one prompt, all that causal pieces do not cover is one run of queries and
// one of keys; then parts are merged, and their gradients added, in one pass, in bf16 and with one rounding.

#include "flash.h"

#include <algorithm>
#include <initializer_list>
#include <list>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "kernels.h"
#include "recorder.h"

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

// LONG: fewest queries, and keys, of a piece that cuDNN computes. STEP: their numbers are multiples of this, because
// cuDNN makes and keeps a plan for each length, which takes longer than a short piece is worth. Queries, and keys of a
// causal piece, are rounded up. Every query of another piece would see the keys of the padding, so its last keys are a
// piece of their own, for the flash kernel.
constexpr int64_t LONG = 4096, STEP = 1024;

// Pieces that one call computes: consecutive sequences of queries and of keys, from the first token to the last. A gap
// between two pieces is a sequence of queries without keys, or of keys without queries.
struct Call {
  // Whether this is one long piece, computed by cuDNN: then of the fields below only `causal` and `pieces` are set.
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
  const auto there = [&](const std::vector<int32_t>& ends) {
    const Tensor here = at::tensor(ends, at::kInt);
    return device.is_meta() ? at::empty_like(here, here.options().device(device)) : here.pin_memory().to(device, at::kInt, true);
  };
  call.queries = there(queries);
  call.keys = there(keys);
  call.pieces = std::move(pieces);
  return call;
}

// The state of random numbers that a backward pass repeats: there is no dropout, so none were drawn. Made once, because
// filling it is a launch.
const Tensor& no_random_numbers(const Tensor& like, at::ScalarType kind, at::IntArrayRef size) {
  thread_local std::map<std::pair<c10::DeviceIndex, at::ScalarType>, Tensor> made;
  Tensor& none = made[{like.device().index(), kind}];
  if (!none.defined()) none = at::zeros(size, like.options().dtype(kind));
  return none;
}

// Whether cuDNN computes long pieces of these tensors.
bool by_cudnn(const Tensor& q) {
  if (at::globalContext().deterministicAlgorithms() || (q.size(2) != 64 && q.size(2) != 128)) return false;
  if (q.is_meta()) return true;
#ifdef GRPO_CUDA
  return at::cuda::getCurrentDeviceProperties()->major >= 9;
#else
  return false;
#endif
}

// Multiplications of the product of q: [n, heads, d] and the keys that each query sees. The product of probabilities
// and values takes as many.
double multiplications(const Tensor& q, const std::vector<Piece>& pieces) {
  double pairs = 0;
  for (const Piece& p : pieces) {
    const double queries = static_cast<double>(p.queries), keys = static_cast<double>(p.keys);
    pairs += p.causal ? queries * (queries + 1) / 2 : queries * keys;
  }
  return pairs * static_cast<double>(q.size(1)) * static_cast<double>(q.size(2));
}

// What a kernel of libtorch returns for meta tensors, which it does not support.
std::pair<Tensor, Tensor> counted_forward(const char* name, const Tensor& q, const Tensor& k, const Tensor& v, at::IntArrayRef lse, double products) {
  const Tensor out = at::empty_like(q), logarithms = at::empty(lse, q.options().dtype(at::kFloat));
  recorder::add(name, 4 * products, recorder::bytes({q, k, v}), recorder::bytes({out, logarithms}));
  return {out, logarithms};
}

std::tuple<Tensor, Tensor, Tensor> counted_backward(const char* name, const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                                    const Tensor& out, const Tensor& lse, double products) {
  const Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
  recorder::add(name, 10 * products, recorder::bytes({dout, q, k, v, out, lse}), recorder::bytes({dq, dk, dv}));
  return {dq, dk, dv};
}

// The flash kernel's call: output [n, heads, d] and logarithms [heads, n].
std::pair<Tensor, Tensor> flash_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Call& call) {
  if (q.is_meta()) return counted_forward("aten::_flash_attention_forward", q, k, v, {q.size(1), q.size(0)}, multiplications(q, call.pieces));
  const auto answer = at::_flash_attention_forward(q, k, v, call.queries, call.keys, call.most_queries, call.most_keys, 0.0, call.causal, false);
  return {std::get<0>(answer).contiguous(), std::get<1>(answer).contiguous()};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                                  const Tensor& lse, const Call& call) {
  if (q.is_meta()) return counted_backward("aten::_flash_attention_backward", dout, q, k, v, out, lse, multiplications(q, call.pieces));
  return at::_flash_attention_backward(dout, q, k, v, out, lse, call.queries, call.keys, call.most_queries, call.most_keys, 0.0, call.causal,
                                       no_random_numbers(q, at::kUInt64, {2}), Tensor());
}

// Causal calls come first. Together they contain every token's query once.
std::vector<Call> calls_of(std::vector<Piece> pieces, const Tensor& q, bool cudnn) {
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::make_tuple(!a.causal, a.query, a.key) < std::make_tuple(!b.causal, b.query, b.key);
  });
  std::vector<Call> calls;
  std::vector<std::vector<Piece>> together;
  const auto alone = [&](const Piece& p) {
    Call call;
    call.alone = true;
    call.causal = p.causal;
    call.pieces = {p};
    calls.push_back(std::move(call));
  };
  for (Piece p : pieces) {
    if (cudnn && p.queries >= LONG && p.keys >= LONG) {
      const int64_t whole = p.causal ? p.keys : p.keys / STEP * STEP;
      alone({p.query, p.queries, p.key, whole, p.causal});
      p.key += whole;
      p.keys -= whole;
      if (p.keys == 0) continue;
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

// Rows of up to five tensors that one launch copies or adds (kernels.cu).
class Moves {
 public:
  // The first rows of `to` become those of `from`, all further ones 0; or from and more (undefined: 0) are added to it.
  void move(const Tensor& from, const Tensor& to, const Tensor& more = Tensor()) {
    TORCH_CHECK(number_ < 5 && from.stride(0) == to.stride(0), "more than five tensors, or rows of different widths");
    rows_.from[number_] = kernels::in(from);
    rows_.more[number_] = more.defined() ? kernels::in(more) : nullptr;
    rows_.to[number_] = kernels::out(to);
    rows_.width[number_] = from.numel() / from.size(0);
    rows_.count[number_] = from.size(0);
    rows_.rows[number_] = to.size(0);
    fours_ += to.numel() / 4;
    ++number_;
    // Until the launch.
    for (const Tensor& x : {from, to, more}) held_.push_back(x);
  }

  void launch(bool add) {
    if (number_ == 0) return;
    kernels::launch("move_rows", kernels::blocks_for(fours_, kernels::THREADS), kernels::THREADS, rows_, static_cast<int>(add));
  }

 private:
  // As in kernels.cu.
  struct Rows {
    const void* from[5] = {};
    const void* more[5] = {};
    void* to[5] = {};
    long long width[5] = {}, count[5] = {}, rows[5] = {};
  } rows_;
  std::vector<Tensor> held_;
  size_t number_ = 0;
  int64_t fours_ = 0;
};

// Tokens [begin, begin + count) of each tensor, [n, heads, d], as [1, heads, padded, d], with zeros at the end.
std::vector<Tensor> padded(std::initializer_list<Tensor> all, int64_t begin, int64_t count) {
  std::vector<Tensor> made;
  Moves moves;
  const int64_t whole = (count + STEP - 1) / STEP * STEP;
  for (const Tensor& x : all) {
    const Tensor own = x.narrow(0, begin, count);
    const Tensor wide = whole == count ? own : at::empty({whole, x.size(1), x.size(2)}, x.options());
    if (whole != count) moves.move(own, wide);
    made.push_back(wide.unsqueeze(0).transpose(1, 2));
  }
  moves.launch(false);
  return made;
}

// The same for tensors that follow queries, then for keys and values.
std::vector<Tensor> padded_for(std::initializer_list<Tensor> of_queries, const Tensor& k, const Tensor& v, const Piece& p) {
  if (p.causal) {
    std::vector<Tensor> all(of_queries);
    all.push_back(k);
    all.push_back(v);
    return all.size() == 3 ? padded({all[0], k, v}, p.query, p.queries) : padded({all[0], all[1], all[2], k, v}, p.query, p.queries);
  }
  std::vector<Tensor> made = padded(of_queries, p.query, p.queries);
  for (const Tensor& x : padded({k, v}, p.key, p.keys)) made.push_back(x);
  return made;
}

// [1, heads, padded, d] as [count, heads, d].
Tensor shortened(const Tensor& x, int64_t count) { return x.squeeze(0).transpose(0, 1).narrow(0, 0, count).contiguous(); }

// A part of attention: output [rows, heads, d] and logarithms [heads, at least rows], whose first row is that of token
// `first`.
struct Part {
  Tensor out, lse;
  int64_t first = 0;
};

// Queries do not see the padding, which is at the end.
Part cudnn_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Piece& p) {
  const std::vector<Tensor> wide = padded_for({q}, k, v, p);
  const int64_t whole = wide[0].size(2), keys = wide[1].size(2), heads = q.size(1);
  Tensor out, lse;
  if (q.is_meta()) {
    std::tie(out, lse) = counted_forward("aten::_cudnn_attention_forward", wide[0], wide[1], wide[2], {heads, whole}, multiplications(q, {p}));
  } else {
    const auto answer =
        at::_cudnn_attention_forward(wide[0], wide[1], wide[2], std::nullopt, std::nullopt, std::nullopt, whole, keys, true, 0.0, p.causal, false);
    out = std::get<0>(answer), lse = std::get<1>(answer);
  }
  return {shortened(out, p.queries), lse.contiguous().view({heads, whole}), p.query};
}

// Zeros in queries, output, its gradient and the logarithms after the last token add nothing: their probabilities are
// 1, their gradients 0.
std::tuple<Tensor, Tensor, Tensor> cudnn_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                                                  const Tensor& lse, const Piece& p) {
  const std::vector<Tensor> wide = padded_for({dout, q, out}, k, v, p);
  const int64_t whole = wide[0].size(2), keys = wide[3].size(2);
  Tensor logarithms;
  if (whole == p.queries && whole == lse.size(1)) {
    logarithms = lse.view({1, q.size(1), whole, 1});
  } else {
    logarithms = at::zeros({1, q.size(1), whole, 1}, lse.options());
    logarithms.view({q.size(1), whole}).narrow(1, 0, p.queries).copy_(lse.narrow(1, p.query, p.queries));
  }
  const Tensor none = no_random_numbers(q, at::kLong, {});
  const auto answer = q.is_meta()
                          ? counted_backward("aten::_cudnn_attention_backward", wide[0], wide[1], wide[3], wide[4], wide[2], logarithms, multiplications(q, {p}))
                          : at::_cudnn_attention_backward(wide[0], wide[1], wide[3], wide[4], wide[2], logarithms, none, none, Tensor(), Tensor(), Tensor(),
                                                          whole, keys, 0.0, p.causal);
  return {shortened(std::get<0>(answer), p.queries), shortened(std::get<1>(answer), p.keys), shortened(std::get<2>(answer), p.keys)};
}

// Whether all pieces besides causal ones are one run of queries, which one call or two compute.
bool one_prompt(const std::vector<Call>& calls) {
  std::vector<Piece> others;
  for (const Call& call : calls) {
    if (!call.causal) others.insert(others.end(), call.pieces.begin(), call.pieces.end());
  }
  const bool few = !others.empty() && others.size() <= 2;
  if (!few || others.front().query != others.back().query || others.front().queries != others.back().queries) return false;
  // Gradients of one key are not added twice in one launch.
  const Piece &one = others.front(), &other = others.back();
  return others.size() == 1 || one.key + one.keys <= other.key || other.key + other.keys <= one.key;
}

// A part as the kernels take it.
struct PartOf {
  const void* out = nullptr;
  const void* lse = nullptr;
  long long first = 0, stride = 0;
};

PartOf taken(const Part& part) { return {kernels::in(part.out), kernels::in<float>(part.lse), part.first, part.lse.size(1)}; }

// Merges one or two parts into out: [n, heads, d] and lse: [heads, n], for `count` tokens from `begin` on; or, if `sum`
// is defined, one part into that in place of out.
void merge(const std::vector<Part>& parts, long long begin, long long count, const Tensor& out, const Tensor& sum, const Tensor& lse) {
  const long long n = out.size(0);
  const int heads = static_cast<int>(out.size(1)), d = static_cast<int>(out.size(2));
  const int64_t values = kernels::blocks_for(count * heads * d / 4, kernels::THREADS);
  if (sum.defined()) {
    kernels::launch("merge", values, kernels::THREADS, taken(parts.front()), kernels::out<float>(sum), kernels::in<float>(lse), begin, count, n, heads, d);
  } else {
    kernels::launch("merge_all", values, kernels::THREADS, taken(parts.front()), parts.size() > 1 ? taken(parts[1]) : PartOf(), kernels::out(out),
                    kernels::in<float>(lse), begin, count, n, heads, d);
  }
  for (const Part& part : parts) {
    kernels::launch("merge_lse", kernels::blocks_for(count * heads, kernels::THREADS), kernels::THREADS, taken(part), kernels::out<float>(lse), begin, count,
                    n, heads);
  }
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
  const int64_t n = q.size(0), heads = q.size(1);
  const std::vector<Call>& calls = calls_for(pieces, q);
  const bool once = one_prompt(calls);
  Tensor out, lse, sum;
  // Parts that are merged at once, and the piece of one of them.
  std::vector<Part> parts;
  Piece of_all{};
  for (const Call& call : calls) {
    const Piece& p = call.pieces.front();
    // A call for many pieces has all tokens; where a query has no keys, its logarithm is infinite.
    const auto [first, count] = call.alone ? std::pair(p.query, p.queries) : std::pair(int64_t(0), n);
    Part part;
    if (call.alone) {
      part = cudnn_forward(q, k, v, p);
    } else {
      std::tie(part.out, part.lse) = flash_forward(q, k, v, call);
    }
    if (call.causal && count == n) {
      out = part.out, lse = part.lse.narrow(1, 0, n).contiguous();
    } else if (call.causal) {
      if (!out.defined()) out = at::empty_like(q), lse = at::empty({heads, n}, q.options().dtype(at::kFloat));
      out.narrow(0, first, count).copy_(part.out);
      lse.narrow(1, first, count).copy_(part.lse.narrow(1, 0, count));
    } else if (once) {
      parts.push_back(part);
      of_all = p;
    } else {
      if (!sum.defined()) sum = out.to(at::kFloat);
      merge({part}, first, count, out, sum, lse);
    }
  }
  if (once) merge(parts, of_all.query, of_all.queries, out, Tensor(), lse);
  return {sum.defined() ? sum.to(q.scalar_type()) : out, lse};
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                                            const std::vector<int64_t>& pieces) {
  const Strictly strictly;
  const std::vector<Call>& calls = calls_for(pieces, q);
  const bool once = one_prompt(calls);
  // In bf16; in fp32 if parts are added one after the other.
  Tensor dq, dk, dv;
  // What is added at once: each part's gradients of keys and values, and those of the same queries in all parts.
  Moves adding;
  std::vector<Tensor> of_queries;
  Piece of_all{};
  for (const Call& call : calls) {
    const Piece& p = call.pieces.front();
    if (call.alone && call.causal) {
      const auto [part_q, part_k, part_v] = cudnn_backward(dout, q, k, v, out, lse, p);
      if (!dq.defined() && p.queries == q.size(0)) {
        dq = part_q, dk = part_k, dv = part_v;
        continue;
      }
      if (!dq.defined()) dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
      Moves moves;
      moves.move(part_q, dq.narrow(0, p.query, p.queries));
      moves.move(part_k, dk.narrow(0, p.key, p.keys));
      moves.move(part_v, dv.narrow(0, p.key, p.keys));
      moves.launch(false);
      continue;
    }
    auto [part_q, part_k, part_v] =
        call.alone ? cudnn_backward(dout, q, k, v, out, lse, p) : flash_backward(dout, q, k, v, out, lse, call);
    if (call.causal) {
      dq = part_q.contiguous(), dk = part_k.contiguous(), dv = part_v.contiguous();
      continue;
    }
    if (once) {
      // Outside of its pieces a call's result has no meaning.
      if (!call.alone) {
        part_q = part_q.contiguous().narrow(0, p.query, p.queries);
        part_k = part_k.contiguous().narrow(0, p.key, p.keys);
        part_v = part_v.contiguous().narrow(0, p.key, p.keys);
      }
      of_queries.push_back(part_q);
      of_all = p;
      adding.move(part_k, dk.narrow(0, p.key, p.keys));
      adding.move(part_v, dv.narrow(0, p.key, p.keys));
      continue;
    }
    for (Tensor* sum : {&dq, &dk, &dv}) *sum = sum->to(at::kFloat);
    for (const Piece& own : call.pieces) {
      const int64_t query = call.alone ? 0 : own.query, key = call.alone ? 0 : own.key;
      dq.narrow(0, own.query, own.queries).add_(part_q.narrow(0, query, own.queries));
      dk.narrow(0, own.key, own.keys).add_(part_k.narrow(0, key, own.keys));
      dv.narrow(0, own.key, own.keys).add_(part_v.narrow(0, key, own.keys));
    }
  }
  if (once) {
    adding.move(of_queries.front(), dq.narrow(0, of_all.query, of_all.queries), of_queries.size() > 1 ? of_queries[1] : Tensor());
    adding.launch(true);
  }
  const auto kind = q.scalar_type();
  return {dq.to(kind), dk.to(kind), dv.to(kind)};
}

}  // namespace flash
