// bindings/thread_scratch.hpp: vectors and references of one call of capture() or stats(). A thread keeps
// them for its next call.
//
// Threads: any, with the GIL, except for the work that without_gil() runs.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "bindings/tensor.hpp"
#include "capture/capture.hpp"
#include "device/device_set.hpp"

namespace tdcore {

struct Scratch {
  TensorReader reader;
  std::vector<TensorRequest> requests;
  Groups groups;  // requests of a call with tensors on devices, by device
  bool busy = false;
};

/// This thread's scratch, or a new one if Python code that a capture runs in this thread captures again. The
/// destructor releases all references.
class ThreadScratch {
 public:
  ThreadScratch()
      : fresh_(scratch_of_thread().busy ? std::make_unique<Scratch>() : nullptr),
        scratch_(fresh_ ? *fresh_ : scratch_of_thread()) {
    scratch_.busy = true;
    scratch_.requests.clear();
  }
  ~ThreadScratch() {
    if (!has_gil_) return;
    scratch_.reader.release();
    scratch_.busy = false;
  }
  ThreadScratch(const ThreadScratch&) = delete;
  ThreadScratch& operator=(const ThreadScratch&) = delete;
  Scratch* operator->() const noexcept { return &scratch_; }

  /// Runs `work` without the GIL. If the interpreter ends meanwhile, this thread is unwound when it takes the
  /// GIL again (so not in a destructor); no reference may be used after that.
  template <typename Work>
  void without_gil(Work work) {
    PyThreadState* state = PyEval_SaveThread();
    has_gil_ = false;
    work();
    PyEval_RestoreThread(state);
    has_gil_ = true;
  }

 private:
  static Scratch& scratch_of_thread() {
    thread_local Scratch scratch;
    return scratch;
  }

  std::unique_ptr<Scratch> fresh_;
  Scratch& scratch_;
  bool has_gil_ = true;
};

inline bool wait_without_gil(Ring& ring, std::uint64_t bytes, void* scratch) {
  bool room = false;
  static_cast<ThreadScratch*>(scratch)->without_gil([&] { room = ring.wait_for_room(bytes); });
  return room;
}

/// Captures tensors on devices (bindings/device.cpp), and tensors in host memory with `capture_host`. Only
/// for calls with requests on a device.
CaptureResult capture_with_devices(Ring& ring, DeviceSet& devices, ThreadScratch& scratch,
                                   const StepContext& step_context);

/// Captures requests in host memory with `bytes` in total. Releases the GIL if they are many.
CaptureResult capture_in_host_memory(Ring& ring, ThreadScratch& scratch,
                                     std::span<const TensorRequest> requests, const StepContext& step_context,
                                     std::uint64_t bytes);

}  // namespace tdcore
