// Attention over a packed tree in bf16 on a GPU, by libtorch's flash kernels.
#pragma once

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

struct Piece {
  int64_t query, queries, key, keys;
  bool causal;
};

// Pieces from five numbers each: first query, queries, first key, keys, causal.
std::vector<Piece> pieces_of(const std::vector<int64_t>& flat);

namespace flash {

// Whether these functions compute with these queries: in bf16 on a GPU. The kernel refuses head sizes that it does not
// support.
bool computes(const at::Tensor& q);

// Output [n, heads, d] and logarithms [heads, n] in fp32 of q: [n, heads, d] and k, v: [n, groups, d], all contiguous.
std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::vector<int64_t>& pieces);

// The gradients of q, k and v, from the output's gradient, the output and the logarithms.
std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                        const at::Tensor& out, const at::Tensor& lse, const std::vector<int64_t>& pieces);

}  // namespace flash
