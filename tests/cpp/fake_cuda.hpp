// fake_cuda.hpp: a libcuda.so.1 whose device is host memory and whose streams run work immediately, and a
// libnvrtc that returns fixed images. The tests configure both and read the calls. Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace tdcore::testing {

struct FakeLaunch {
  std::string kernel;
  unsigned blocks;
  unsigned threads;
  std::uintptr_t stream;
  std::vector<char> launch;  // the parameter: a device::Launch, InlineLaunch or Collection
};

struct FakeCuda {
  int version = 12040;
  int devices = 1;
  int major = 9, minor = 0;
  bool stream_writes = true;  // attribute 122
  bool drop_stream_writes = false;
  bool drop_commit_kernel = false;
  bool late_copies = false;  // a copy to the host happens after the next write
  bool events_pending = false;
  std::uintptr_t moved_by = 0;           // device address minus host address of pinned memory
  std::map<std::string, int> failing;    // function -> result of every call
  std::map<std::string, int> fail_at;    // function -> number of the call, from 1, that fails with 2
  std::set<std::string> refused_images;  // beginnings of images that module loading rejects with 209
  // As in drivers before 12.4, the first launch of a kernel loads it.
  std::set<std::string> loaded;
  int loads_in_capture = 0;  // number of such launches during a capture, not in relaxed mode; they fail
  int capture_status = 0;
  std::uint64_t capture_id = 0;

  // Observed calls.
  std::map<std::string, int> calls;
  std::map<std::uintptr_t, std::uint64_t> registered;  // address -> bytes
  int strict = 0;  // number of calls that may wait and were not in relaxed mode
  std::vector<FakeLaunch> launches;
  void (*graph_ended)(void*) = nullptr;  // of the user object that the graph has taken
  void* graph_data = nullptr;
  std::vector<std::string> images;
  std::vector<int> priorities;
  int live =
      0;  // number of memory blocks, events, streams, modules, retained contexts that were not released
  int capture_mode = 0;
  std::vector<void*> contexts;  // the stack of the thread
  int not_current = 0;          // number of calls without the device's context
};

struct FakeNvrtc {
  bool fails = false;
  int compiled = 0;
  std::string option;  // of the last compilation
};

extern "C" {
__attribute__((visibility("default"))) FakeCuda* tdcore_fake_cuda();
__attribute__((visibility("default"))) FakeNvrtc* tdcore_fake_nvrtc();
}

}  // namespace tdcore::testing
