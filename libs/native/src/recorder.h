// Counts operations of meta tensors, which have shapes and no memory. A meta tensor in bf16 stands for a tensor on a
// Hopper GPU: the same code makes the same calls in the same order, and nothing is computed.
#pragma once

#include <ATen/ATen.h>

namespace recorder {

// Records a call that the dispatcher does not see on meta tensors: a kernel of our own, or one of libtorch's without a
// meta implementation in C++. flops: floating-point operations.
void add(const char* name, double flops, double read, double written);

// Bytes of a tensor; of a view that repeats values, those of its memory.
double bytes(const at::Tensor& x);
double bytes(at::TensorList all);

// Arguments of kernels of our own (kernels.h), noted until the thread's next launch.
void reads(const at::Tensor& x);
void writes(const at::Tensor& x);
// Records that kernel if its arguments were meta tensors; returns whether they were.
bool launched(const char* name);

}  // namespace recorder
