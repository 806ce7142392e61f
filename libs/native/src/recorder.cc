// Operations of meta tensors, by libtorch's observer of its dispatcher. Of nested calls only the innermost counts: the
// others are made of it.

// As libtorch was built: without it the observer's class has one more member than libtorch's objects.
#ifndef NDEBUG
#define NDEBUG
#endif

#include "recorder.h"

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include <ATen/WrapDimUtils.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include "call.h"

namespace {

using at::Tensor;

struct Operation {
  std::string name;
  double flops = 0, read = 0, written = 0;
};

// Of this thread, in which autograd computes meta tensors too.
thread_local bool on = false;
thread_local std::vector<Operation> operations;
thread_local at::CallbackHandle handle;

// A call under way in this thread.
struct Frame {
  Operation operation;
  // Whether another call inside of it does the work.
  bool outer = false;
};
thread_local std::vector<Frame> frames;

struct Arguments {
  double read = 0, written = 0;
  bool meta = false;
};
thread_local Arguments arguments;

// Calls that only describe memory, or allocate it, and those of autograd around operations.
bool is_free(const std::string& name) {
  if (name.rfind("aten::", 0) != 0) return true;
  static const std::unordered_set<std::string> names{
      "aten::alias",         "aten::as_strided",  "aten::broadcast_tensors",      "aten::contiguous",    "aten::detach",           "aten::detach_",
      "aten::empty",         "aten::empty_like",  "aten::empty_strided",          "aten::expand",        "aten::expand_as",        "aten::flatten",
      "aten::is_same_size",  "aten::lift_fresh",  "aten::narrow",                 "aten::new_empty",     "aten::new_empty_strided", "aten::numpy_T",
      "aten::permute",       "aten::result_type", "aten::_reshape_alias",         "aten::reshape",       "aten::reshape_as",       "aten::resize_",
      "aten::select",        "aten::slice",       "aten::split",                  "aten::split_with_sizes", "aten::squeeze",       "aten::sym_size",
      "aten::t",             "aten::to",          "aten::transpose",              "aten::unbind",        "aten::unflatten",        "aten::unsqueeze",
      "aten::_unsafe_view",  "aten::view",        "aten::view_as",                "aten::_has_compatible_shallow_copy_type", "aten::requires_grad_", "aten::output_nr",
      "aten::_version",      "aten::is_leaf",     "aten::set_data",               "aten::retain_grad",   "aten::expand_copy",      "aten::matmul"};
  return names.count(name) != 0;
}

double bytes_of(const c10::IValue& value) {
  if (value.isTensor()) return recorder::bytes(value.toTensor());
  if (value.isTensorList()) {
    double sum = 0;
    for (const Tensor& x : value.toTensorVector()) sum += recorder::bytes(x);
    return sum;
  }
  return 0;
}

// Two operations for each multiplication of a product.
double flops_of(const std::string& name, c10::ArrayRef<const c10::IValue> inputs) {
  const bool adds = name == "aten::addmm" || name == "aten::addmm_";
  if (!adds && name != "aten::mm" && name != "aten::bmm") return 0;
  const size_t first = adds ? 1 : 0;
  const Tensor a = inputs[first].toTensor(), b = inputs[first + 1].toTensor();
  return 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(-1));
}

// The first input that is read: a copy or a fill does not read the place that it overwrites, nor does a product without
// the sum.
size_t first_read(const std::string& name, c10::ArrayRef<const c10::IValue> inputs) {
  if (name == "aten::zero_" || name == "aten::fill_") return inputs.size();
  const bool product = name == "aten::addmm" && inputs.size() > 3 && inputs[3].isScalar() && inputs[3].toScalar().toDouble() == 0;
  return name == "aten::copy_" || product ? 1 : 0;
}

void keep(Operation operation) { operations.push_back(std::move(operation)); }

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
  Frame frame;
  frame.operation.name = call.name();
  const auto inputs = call.inputs();
  for (size_t i = first_read(frame.operation.name, inputs); i < inputs.size(); ++i) frame.operation.read += bytes_of(inputs[i]);
  frame.operation.flops = flops_of(frame.operation.name, inputs);
  frames.push_back(std::move(frame));
  return nullptr;
}

void end(const at::RecordFunction& call, at::ObserverContext*) {
  if (frames.empty()) return;
  Frame frame = std::move(frames.back());
  frames.pop_back();
  const bool works = frame.outer || !is_free(frame.operation.name);
  if (works && !frames.empty()) frames.back().outer = true;
  if (frame.outer || !works || !on) return;
  for (const c10::IValue& output : call.outputs()) frame.operation.written += bytes_of(output);
  keep(std::move(frame.operation));
}

// Shapes of operations that have no meta implementation in C++.
Tensor selected(const Tensor& x, int64_t dim, const Tensor& index) {
  auto size = x.sizes().vec();
  size[at::maybe_wrap_dim(dim, x.dim())] = index.numel();
  return at::empty(size, x.options());
}

Tensor places(const Tensor&, const Tensor& values, bool int32, bool, std::optional<std::string_view>, const std::optional<Tensor>&) {
  return at::empty(values.sizes(), values.options().dtype(int32 ? at::kInt : at::kLong));
}

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("index_select", selected);
  library.impl("searchsorted.Tensor", places);
}

}  // namespace

namespace recorder {

double bytes(const Tensor& x) {
  if (!x.defined()) return 0;
  const double own = static_cast<double>(x.numel()) * static_cast<double>(x.element_size());
  return x.has_storage() ? std::min(own, static_cast<double>(x.storage().nbytes())) : own;
}

double bytes(at::TensorList all) {
  double sum = 0;
  for (const Tensor& x : all) sum += bytes(x);
  return sum;
}

void add(const char* name, double flops, double read, double written) {
  if (!frames.empty()) frames.back().outer = true;
  if (on) keep({name, flops, read, written});
}

void reads(const Tensor& x) {
  arguments.meta = true;
  arguments.read += bytes(x);
}

void writes(const Tensor& x) {
  arguments.meta = true;
  arguments.written += bytes(x);
}

bool launched(const char* name) {
  const Arguments own = arguments;
  arguments = {};
  if (own.meta) add((std::string("grpo::") + name).c_str(), 0, own.read, own.written);
  return own.meta;
}

}  // namespace recorder

extern "C" {

// Records this thread's operations from now on.
void grpo_record_begin() {
  if (on) at::removeCallback(handle);
  operations.clear();
  frames.clear();
  arguments = {};
  handle = at::addThreadLocalCallback(at::RecordFunctionCallback(&begin, &end).needsInputs(true).needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
  on = true;
}

// Ends it, and passes each operation on.
void grpo_record_end(void (*each)(void* into, const char* name, double flops, double read, double written), void* into) {
  on = false;
  at::removeCallback(handle);
  for (const Operation& one : operations) each(into, one.name.c_str(), one.flops, one.read, one.written);
  operations.clear();
}

// A contiguous tensor of this kind and size without memory.
int grpo_meta(void* like, const int64_t* size, size_t dims, void** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    *out = new Tensor(at::empty(at::IntArrayRef(size, dims), of(like).options().device(at::kMeta)));
  });
}

}  // extern "C"
