// silu(gate) * up in one pass on a GPU.
#pragma once

#include <utility>

#include <ATen/ATen.h>

at::Tensor gated(const at::Tensor& gate, const at::Tensor& up);

// The gradients of gate and up, given that of their product.
std::pair<at::Tensor, at::Tensor> gated_backward(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& above);
