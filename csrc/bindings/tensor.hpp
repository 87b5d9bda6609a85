// bindings/tensor.hpp: from any Python object to a TensorView, without copying and without importing a
// framework.
//
// In this order: the DLPack exchange table of the object's type (PyTorch 2.10+, about 90 ns), PyTorch's
// attributes (older versions), the buffer protocol and __array_interface__ (NumPy, ml_dtypes),
// __cuda_array_interface__ (CuPy, Numba), __dlpack__ (anything else), and plain numbers. The way is decided
// once per type and remembered.
// It reads sizes and addresses; it never touches autograd, never synchronises a device, never detaches.
// Every answer is validated here: a framework's word is not enough for an address (a sharded or fake
// tensor answers "null" without an error, a conjugated one answers with memory of other values).
//
// A tensor on a device comes with the stream behind whose work its values are there: the framework's current
// one for this thread (PyTorch; hooks run on autograd's threads too), the one that the object names
// (__cuda_array_interface__), or one that we name to the producer, which makes it wait for the values
// (__dlpack__). PyTorch gives memory back in the order of its streams, so nothing of its is kept; what other
// producers export is kept until the device has read it: take_loans().
// Each way has a file: dlpack_reader.cpp, array_interface_reader.cpp (with buffers), numbers.cpp and, for
// attributes, tensor.cpp. tensor_device.cpp has the devices and streams of all.
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

/// One export that is to be given back: a DLPack tensor of either kind, or a reference.
struct Export {
  int device = kHostMemory;  // whose memory it is
  dlpack::Managed* managed = nullptr;
  dlpack::ManagedLegacy* legacy = nullptr;
  PyObject* owner = nullptr;

  void give_back() const noexcept;  // needs the GIL; foreign code may run
};

/// One call's collection of views, with all that keeps them alive.
/// Reused from call to call (its vectors keep their room); belongs to one thread at a time.
class TensorReader {
 public:
  TensorReader() = default;
  TensorReader(const TensorReader&) = delete;
  TensorReader& operator=(const TensorReader&) = delete;
  ~TensorReader() = default;  // release() must have been called: there may be no GIL here

  /// Takes a reference to each object, before any is read: reading may run Python, which may change the list.
  /// devices: whether tensors on devices may be read; they are refused else.
  void hold(PyObject* const* objects, std::size_t count, bool devices);
  PyObject* held(std::size_t index) const noexcept { return references_[index]; }

  /// Reads an object that is held. kNone: `view` is valid. Else why not, and the view is empty; no Python
  /// error is left behind. With `why`, it is filled with the text of the Python error, if there was one.
  DropReason read(PyObject* object, TensorView& view, std::string* why = nullptr);

  /// Whether a tensor on a device was met.
  bool met_device() const noexcept { return met_device_; }

  /// What producers on that device lent for this call, to be kept beyond release(); null when nothing.
  std::unique_ptr<Borrowed> take_loans(int device);

  /// Drops all references, buffers and DLPack tensors. Foreign code may run.
  void release() noexcept;

  /// What Python code run by read() raised that is not an Exception (Ctrl-C), as a new reference, or null.
  /// The caller finishes its work and then passes it to raise_interrupt().
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

  /// A framework's current stream on a device, asked once per call. api: null is PyTorch by attributes.
  struct CurrentStream {
    const dlpack::ExchangeApi* api;
    std::int16_t device;
    std::uintptr_t stream;
  };

  std::vector<PyObject*> references_;                    // owned
  std::vector<Export> exports_;                          // owned: to be given back
  std::vector<CurrentStream> streams_;                   // of this call
  bool devices_ = false;                                 // tensors on devices may be read
  bool met_device_ = false;                              // one was met in this call
  std::vector<std::unique_ptr<std::int64_t[]>> chunks_;  // shapes, strides and numbers that views point at
  std::size_t chunk_ = 0;                                // chunk in use
  std::size_t used_ = 0;                                 // words used in it
  std::string* why_ = nullptr;                           // of the read() that runs
  PyObject* interrupt_ = nullptr;                        // owned: an exception value
};

/// Raises an exception value taken by take_interrupt(), and takes the reference.
[[noreturn]] void raise_interrupt(PyObject* interrupt);

/// What to tell a user about an object that could not be read, and what to do about it.
const char* advice(DropReason reason) noexcept;

}  // namespace tdcore
