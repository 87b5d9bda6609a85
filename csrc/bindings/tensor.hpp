// bindings/tensor.hpp: conversion of any Python object to a TensorView, without a copy and without importing
// a framework.
//
// In this order: the DLPack exchange table of the object's type (PyTorch 2.10+, about 90 ns), PyTorch's
// attributes (older versions), the buffer protocol and __array_interface__ (NumPy, ml_dtypes),
// __cuda_array_interface__ (CuPy, Numba), __dlpack__ (other objects), and plain numbers. The method is
// selected once per type and stored.
//
// A TensorReader reads sizes and addresses; it never uses autograd, never synchronizes a device, never
// detaches. Every value from a framework is validated. For example, a sharded or fake tensor returns a null
// address without an error, and a conjugated tensor returns memory with other values.
//
// For a tensor on a device, the reader also returns the stream whose work computes the values. This is the
// framework's current stream of this thread (PyTorch; hooks also run in autograd's threads), the stream that
// the object names (__cuda_array_interface__), or a stream that tdcore names to the producer, which makes the
// stream wait for the values (__dlpack__). PyTorch frees memory in the order of its streams, so its tensors
// are not kept. Exports of other producers are kept until the device has read them: take_loans().
//
// Each method has a file: dlpack_reader.cpp, array_interface_reader.cpp (with buffers), numbers.cpp and, for
// attributes, tensor.cpp. tensor_device.cpp has the devices and streams of all methods.
//
// Threads: everything here needs the GIL. Views stay valid until release(), also without the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/dlpack.hpp"
#include "base/tensor_view.hpp"
#include "bindings/types.hpp"
#include "device/device_set.hpp"

namespace tdcore {

/// One export that must be released: a DLPack tensor of either kind, or a reference.
struct Export {
  int device = kHostMemory;  // device of the memory
  dlpack::Managed* managed = nullptr;
  dlpack::ManagedLegacy* legacy = nullptr;
  PyObject* owner = nullptr;

  void give_back() const noexcept;  // needs the GIL; code of other libraries may run
};

/// The views of one call, with the references that keep them alive. Reused for later calls (its vectors keep
/// their capacity); belongs to one thread at a time.
class TensorReader {
 public:
  TensorReader() = default;
  TensorReader(const TensorReader&) = delete;
  TensorReader& operator=(const TensorReader&) = delete;
  ~TensorReader() = default;  // release() must have been called, because the GIL may not be held

  /// Takes a reference to each object before the first object is read, because reading may run Python code
  /// that changes the list. devices: whether tensors on devices may be read; otherwise they are rejected.
  void hold(PyObject* const* objects, std::size_t count, bool devices);
  PyObject* held(std::size_t index) const noexcept { return references_[index]; }

  /// Reads an object of hold(). Returns kNone if `view` is valid, otherwise the reason, with an empty view
  /// and no Python error set. If `why` is not null, it gets the text of the Python error, if there was one.
  DropReason read(PyObject* object, TensorView& view, std::string* why = nullptr);

  /// Whether a tensor on a device was read.
  bool met_device() const noexcept { return met_device_; }

  /// Takes the exports of producers on the device, so that release() does not release them; null if there are
  /// none.
  std::unique_ptr<Borrowed> take_loans(int device);

  /// Releases all references, buffers and DLPack tensors. Code of other libraries may run.
  void release() noexcept;

  /// An interrupt (such as Ctrl-C, not an Exception) that Python code raised in read(), as a new reference,
  /// or null. The caller finishes its work and then passes the interrupt to raise_interrupt().
  PyObject* take_interrupt() noexcept { return std::exchange(interrupt_, nullptr); }

 private:
  DropReason read_exchange(PyObject* object, const dlpack::ExchangeApi* api, bool has_bits, TensorView& view);
  DropReason read_attributes(PyObject* object, bool has_bits, TensorView& view);
  DropReason read_buffer(PyObject* object, TensorView& view);
  DropReason read_array_interface(PyObject* object, bool may_copy, TensorView& view);
  DropReason read_anywhere(PyObject* object, const TypeInfo& info, TensorView& view);
  DropReason read_cuda_interface(PyObject* object, bool has_dlpack, TensorView& view);
  DropReason read_dlpack(PyObject* object, TensorView& view);
  DropReason take_capsule(PyObject* capsule, TensorView& view);
  DropReason read_scalar(PyObject* object, TensorView& view);
  DropReason read_number(PyObject* object, TensorView& view);
  DropReason read_integer(PyObject* object, TensorView& view);
  DropReason adopt(const dlpack::Tensor& tensor, const dlpack::ExchangeApi* api, TensorView& view);
  DropReason place_on_device(std::int64_t device, TensorView& view);
  bool current_stream(const dlpack::ExchangeApi* api, TensorView& view);
  DropReason materialise(Py_buffer& buffer, Dtype dtype, TensorView& view);
  DropReason one_element(const void* value, Dtype dtype, TensorView& view);
  DropReason failure_of(PyObject* object);
  PyObject* resolve_bits(PyObject* object, const TensorView& view);
  bool set_dims(PyObject* shape, PyObject* strides, std::int64_t stride_unit, TensorView& view);

  void keep(PyObject* reference) { references_.push_back(reference); }  // steals
  std::int64_t* take_words(std::size_t count);
  void swallow_error();

  static constexpr std::size_t kChunkWords = 4096;

  /// A framework's current stream on a device, read once per call. api: null for PyTorch by attributes.
  struct CurrentStream {
    const dlpack::ExchangeApi* api;
    std::int16_t device;
    std::uintptr_t stream;
  };

  std::vector<PyObject*> references_;                    // owned
  std::vector<Export> exports_;                          // owned: must be released
  std::vector<CurrentStream> streams_;                   // current streams of this call
  bool devices_ = false;                                 // tensors on devices may be read
  bool met_device_ = false;                              // a tensor on a device was read in this call
  std::vector<std::unique_ptr<std::int64_t[]>> chunks_;  // shapes, strides and numbers to which views refer
  std::size_t chunk_ = 0;                                // chunk in use
  std::size_t used_ = 0;                                 // used words of the chunk
  std::string* why_ = nullptr;                           // argument of the running read()
  PyObject* interrupt_ = nullptr;                        // owned: an exception value
};

/// Raises an exception of take_interrupt(), and takes the reference.
[[noreturn]] void raise_interrupt(PyObject* interrupt);

/// Text for the user: the reason why an object cannot be read, and what to pass instead.
const char* advice(DropReason reason) noexcept;

}  // namespace tdcore
