// fakes.hpp: opens the fake CUDA libraries.
// Threads: one.
#pragma once

#include <dlfcn.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "cuda/driver.hpp"
#include "fake_cuda.hpp"

namespace tdcore::testing {

template <class State>
State& state_in(const char* path, const char* symbol) {
  void* const library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  auto* const get = library != nullptr ? reinterpret_cast<State* (*)()>(::dlsym(library, symbol)) : nullptr;
  if (get == nullptr) throw std::runtime_error(std::string(path) + " is not there");
  return *get();
}

/// Resets the state of the fake driver and returns it.
inline FakeCuda& fresh_cuda() {
  FakeCuda& fake = state_in<FakeCuda>(TDCORE_FAKE_CUDA, "tdcore_fake_cuda");
  fake = FakeCuda{};
  return fake;
}

inline std::unique_ptr<const cuda::Driver> fake_driver() {
  std::string reason;
  auto driver = cuda::open_driver(TDCORE_FAKE_CUDA, reason);
  if (driver == nullptr) throw std::runtime_error(reason);
  return driver;
}

}  // namespace tdcore::testing
