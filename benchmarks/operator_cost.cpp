/// Operators with empty kernels in C++, for operator_cost.py. They are registered through libtorch's stable C
/// functions, which are found by name at run time, so the file needs no headers of torch and no link to it.

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

namespace {

using Value = std::uint64_t;  // a pointer or a number
using Kernel = void (*)(Value* stack, std::uint64_t inputs, std::uint64_t outputs);

template <typename Function>
Function find(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

int (*delete_tensor)(void*);
int (*delete_list)(void*);
int (*delete_string)(void*);
int (*list_size)(void*, std::size_t*);
int (*list_item)(void*, std::size_t, Value*);

void* pointer(Value value) { return reinterpret_cast<void*>(value); }

/// Kernel of (order, who). A kernel owns its arguments, so it deletes them.
void tensors_kernel(Value* stack, std::uint64_t, std::uint64_t) {
  delete_tensor(pointer(stack[0]));
  delete_tensor(pointer(stack[1]));
}

/// Kernel of (order, who, values, what).
void kernel(Value* stack, std::uint64_t, std::uint64_t) {
  std::size_t size = 0;
  list_size(pointer(stack[2]), &size);
  for (std::size_t i = 0; i < size; ++i) {
    Value item = 0;
    list_item(pointer(stack[2]), i, &item);
    delete_tensor(pointer(item));
  }
  delete_list(pointer(stack[2]));
  delete_string(pointer(stack[3]));
  tensors_kernel(stack, 0, 0);
}

}  // namespace

/// Registers the operators permanently. Returns 0, or the number of the step that failed.
extern "C" int tdcore_cost_register(const char* path) {
  void* torch = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (torch == nullptr) return 1;
  const auto open = find<int (*)(const char*, const char*, std::uint32_t, void**)>(
      torch, "aoti_torch_library_init_fragment");
  const auto open_kernels = find<int (*)(const char*, const char*, const char*, std::uint32_t, void**)>(
      torch, "aoti_torch_library_init_impl");
  const auto define = find<int (*)(void*, const char*)>(torch, "aoti_torch_library_def");
  const auto implement = find<int (*)(void*, const char*, Kernel)>(torch, "aoti_torch_library_impl");
  delete_tensor = find<int (*)(void*)>(torch, "aoti_torch_delete_tensor_object");
  delete_list = find<int (*)(void*)>(torch, "torch_delete_list");
  delete_string = find<int (*)(void*)>(torch, "torch_delete_string");
  list_size = find<int (*)(void*, std::size_t*)>(torch, "torch_list_size");
  list_item = find<int (*)(void*, std::size_t, Value*)>(torch, "torch_list_get_item");
  if (!open || !open_kernels || !define || !implement || !delete_tensor || !delete_list || !delete_string ||
      !list_size || !list_item)
    return 2;
  void* definitions = nullptr;
  void* kernels = nullptr;
  if (open("tdcore_cost", __FILE__, __LINE__, &definitions) != 0) return 3;
  if (define(definitions, "native(Tensor(a!) order, Tensor who, Tensor[] values, str what) -> ()") != 0)
    return 4;
  if (define(definitions, "native_tensors(Tensor(a!) order, Tensor who) -> ()") != 0) return 4;
  if (open_kernels("tdcore_cost", "CompositeExplicitAutograd", __FILE__, __LINE__, &kernels) != 0) return 5;
  if (implement(kernels, "native", kernel) != 0) return 6;
  return implement(kernels, "native_tensors", tensors_kernel) == 0 ? 0 : 6;
}
