/// Entry points of a library that was loaded at run time.
/// Threads: any.
#pragma once

#include <dlfcn.h>

namespace tdcore::cuda {

/// Stores the address of `symbol` in `function`: null if the library has no such symbol. Returns whether it
/// has.
template <class Pointer>
bool load_symbol(void* library, const char* symbol, Pointer& function) {
  function = reinterpret_cast<Pointer>(::dlsym(library, symbol));
  return function != nullptr;
}

}  // namespace tdcore::cuda
