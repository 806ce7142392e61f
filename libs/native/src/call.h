// Common parts of every call from Rust: exceptions are caught and returned as text, and handles become tensors.

#pragma once

#include <algorithm>
#include <cstring>
#include <exception>

#include <ATen/ATen.h>

template <typename F>
int guarded(char* error, size_t room, F&& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& e) {
    if (room > 0) {
      const size_t length = std::min(std::strlen(e.what()), room - 1);
      std::memcpy(error, e.what(), length);
      error[length] = 0;
    }
    return 1;
  }
}

inline at::Tensor& of(void* tensor) { return *reinterpret_cast<at::Tensor*>(tensor); }
