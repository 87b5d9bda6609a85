// A warm capture call allocates nothing: every allocation of this process is counted. On a device, the test
// counts the allocations of the capturing thread, except those of the simulated device itself, and all calls
// of the device that may allocate or wait.
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "captured.hpp"
#include "check.hpp"
#include "device_rig.hpp"

namespace {

std::atomic<std::uint64_t> allocations{0};  // relaxed: read by the thread that captured
thread_local std::uint64_t allocations_here = 0;
thread_local bool in_device = false;  // allocations of the simulation are not counted

void count_allocation() noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (!in_device) ++allocations_here;
}

}  // namespace

// Sanitizers have their own malloc. Otherwise a program can replace the malloc of glibc, which operator new
// uses.
#if defined(__GLIBC__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* old, std::size_t bytes);
void* __libc_memalign(std::size_t align, std::size_t bytes);

void* malloc(std::size_t bytes) {
  count_allocation();
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  count_allocation();
  return __libc_calloc(count, bytes);
}
void* realloc(void* old, std::size_t bytes) {
  count_allocation();
  return __libc_realloc(old, bytes);
}
void* aligned_alloc(std::size_t align, std::size_t bytes) {
  count_allocation();
  return __libc_memalign(align, bytes);
}
}
#else
// Not inlined: the compiler would see malloc and free behind new and delete, and warn.
__attribute__((noinline)) void* operator new(std::size_t bytes) {
  count_allocation();
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
__attribute__((noinline)) void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  count_allocation();
  return std::malloc(bytes);
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace {

using namespace tdcore;
using namespace tdcore::testing;

/// Number of allocations of the third of three equal calls, each with an empty ring.
std::uint64_t allocations_of(const Tensors& tensors, Ring& ring, Consumer& consumer, bool all_kept) {
  std::uint64_t before = 0;
  for (int call = 0; call < 3; ++call) {
    drain(consumer);
    before = allocations.load(std::memory_order_relaxed);
    REQUIRE((tensors.capture_into(ring).not_kept == 0) == all_kept);
  }
  return allocations.load(std::memory_order_relaxed) - before;
}

void a_warm_call_allocates_nothing(const char* name, const Tensors& tensors, const RingConfig& sizes,
                                   bool all_kept = true) {
  it(name, [&] {
    Ring ring(sizes);
    Consumer consumer(ring.memory());
    REQUIRE(allocations_of(tensors, ring, consumer, all_kept) == 0);
  });
}

/// A simulated device that counts calls that may allocate or wait. Its own allocations are not counted.
class CountingDevice final : public Device {
 private:
  template <typename Call>
  static auto inside(Call&& call) {
    in_device = true;
    const auto result = call();
    in_device = false;
    return result;
  }
  template <typename Call>
  auto set_up(Call&& call) {
    set_ups.fetch_add(1, std::memory_order_relaxed);
    return inside(call);
  }

 public:
  explicit CountingDevice(const SimDeviceOptions& options) : device_(options) { info_ = device_.info(); }

  void* allocate(std::uint64_t bytes) noexcept override {
    return set_up([&] { return device_.allocate(bytes); });
  }
  void* allocate_host(std::uint64_t bytes) noexcept override {
    return set_up([&] { return device_.allocate_host(bytes); });
  }
  bool pin(void* memory, std::uint64_t bytes) noexcept override {
    return set_up([&] { return device_.pin(memory, bytes); });
  }
  StreamHandle make_stream() noexcept override {
    return set_up([&] { return device_.make_stream(); });
  }
  std::uint64_t free_bytes() noexcept override { return device_.free_bytes(); }
  EventHandle make_event() noexcept override {
    return set_up([&] { return device_.make_event(); });
  }
  void* device_address(void* pinned) const noexcept override { return device_.device_address(pinned); }
  bool is_capturing(StreamHandle stream) noexcept override {
    return inside([&] { return device_.is_capturing(stream); });
  }
  bool copy_to_device(StreamHandle stream, void* to, const void* from,
                      std::uint64_t bytes) noexcept override {
    return inside([&] { return device_.copy_to_device(stream, to, from, bytes); });
  }
  bool copy_to_host(StreamHandle stream, void* to, const void* from, std::uint64_t bytes) noexcept override {
    return inside([&] { return device_.copy_to_host(stream, to, from, bytes); });
  }
  bool fill_zero(StreamHandle stream, void* memory, std::uint64_t bytes) noexcept override {
    return inside([&] { return device_.fill_zero(stream, memory, bytes); });
  }
  bool launch(StreamHandle stream, Kernel kernel, const device::Launch& launch) noexcept override {
    return inside([&] { return device_.launch(stream, kernel, launch); });
  }
  bool launch_inline(StreamHandle stream, const device::InlineLaunch& launch) noexcept override {
    return inside([&] { return device_.launch_inline(stream, launch); });
  }
  bool write_word(StreamHandle stream, std::uint64_t* word, std::uint64_t value,
                  CommitMode commit_mode) noexcept override {
    return inside([&] { return device_.write_word(stream, word, value, commit_mode); });
  }
  bool record_event(EventHandle event, StreamHandle stream) noexcept override {
    return inside([&] { return device_.record_event(event, stream); });
  }
  bool wait_event(StreamHandle stream, EventHandle event) noexcept override {
    return inside([&] { return device_.wait_event(stream, event); });
  }
  EventState query_event(EventHandle event) noexcept override {
    return inside([&] { return device_.query_event(event); });
  }
  std::uint64_t capture_id(StreamHandle stream) noexcept override {
    return inside([&] { return device_.capture_id(stream); });
  }
  bool watch_graph(StreamHandle stream, void (*ended)(void*), void* data) noexcept override {
    return set_up([&] { return device_.watch_graph(stream, ended, data); });
  }
  bool open_gate(StreamHandle stream, std::uint64_t* gate, const std::uint64_t* armed) noexcept override {
    return inside([&] { return device_.open_gate(stream, gate, armed); });
  }
  bool set_word(StreamHandle stream, std::uint64_t* word, std::uint64_t value) noexcept override {
    return inside([&] { return device_.set_word(stream, word, value); });
  }
  bool collect(StreamHandle stream, const device::Collection& collection) noexcept override {
    return inside([&] { return device_.collect(stream, collection); });
  }
  bool is_lost() const noexcept override { return device_.is_lost(); }
  std::string errors() const override { return device_.errors(); }

  std::atomic<std::uint64_t> set_ups{0};  // relaxed: read by the thread that captured

 private:
  SimDevice device_;
};

/// Three equal calls, each after the records of the previous call have arrived. The third call allocates
/// nothing, on the host or on the device.
void a_warm_call_on_a_device_allocates_nothing(const char* name, const std::vector<TensorRequest>& requests,
                                               CommitMode commit_mode, FullPolicy policy = FullPolicy::kBlock,
                                               bool all_kept = true) {
  it(name, [&] {
    Ring main(with_lane(config(8 * kMiB, 256, policy)));
    auto made = std::make_unique<CountingDevice>(SimDeviceOptions{.best_commit_mode = commit_mode});
    const CountingDevice& device = *made;
    DeviceCapture captures(std::move(made), main.lanes()[0], main, small_memory());
    Consumer consumer(main.memories());
    std::uint64_t allocated = 0;
    std::uint64_t set_ups = 0;
    for (std::int64_t step = 0; step < 3; ++step) {
      allocated = allocations_here;
      set_ups = device.set_ups.load(std::memory_order_relaxed);
      const CaptureResult result =
          captures.capture(requests, {.step = step, .mode_step = step, .mode = 1, .call = 0}, kTraining);
      (void)captures.mark_step_end(step, {});
      allocated = allocations_here - allocated;
      set_ups = device.set_ups.load(std::memory_order_relaxed) - set_ups;
      REQUIRE((result.not_kept == 0) == all_kept);
      while (captures.busy()) std::this_thread::yield();
      (void)drain(consumer);
    }
    REQUIRE(allocated == 0);
    REQUIRE(set_ups == 0);
  });
}

void warm_calls_on_a_device() {
  const Tensor small(Dtype::kF32, {40});
  const Tensor strided(Dtype::kBF16, {50, 60}, {1, 50});
  const Tensor large(Dtype::kF32, {700'000});  // larger than the arena and the scratch
  std::vector<TensorRequest> mixed;
  for (std::uint32_t name = 0; name < 300; ++name)
    mixed.push_back((name % 2 ? small : strided).request(kAll, name));
  for (const CommitMode commit_mode :
       {CommitMode::kStreamWrite, CommitMode::kCommitKernel, CommitMode::kPoll}) {
    a_warm_call_on_a_device_allocates_nothing("many small tensors on a device allocate nothing", mixed,
                                              commit_mode);
    a_warm_call_on_a_device_allocates_nothing("statistics on a device allocate nothing",
                                              {small.request(kWantStats), large.request(kWantStats, 1)},
                                              commit_mode);
    a_warm_call_on_a_device_allocates_nothing("a tensor in parts on a device allocates nothing",
                                              {large.request(kAll)}, commit_mode);
  }
  a_warm_call_on_a_device_allocates_nothing("what finds no room in the arena allocates nothing",
                                            {large.request(kAll), small.request(kAll, 1)},
                                            CommitMode::kStreamWrite, FullPolicy::kDrop, false);
  a_warm_call_on_a_device_allocates_nothing("what is degraded on a device allocates nothing",
                                            {large.request(kAll), small.request(kAll, 1)},
                                            CommitMode::kStreamWrite, FullPolicy::kDegrade, false);
}

}  // namespace

int main() {
  const RingConfig large = config(64 * kMiB, 64);
  it("an allocation is counted", [] {
    const std::uint64_t before = allocations.load(std::memory_order_relaxed);
    delete new Tensors(1, {1}, {}, 1, kBoth);
    REQUIRE(allocations.load(std::memory_order_relaxed) > before);
  });
  a_warm_call_allocates_nothing("contiguous tensors allocate nothing", Tensors::contiguous(7, 50'000), large);
  a_warm_call_allocates_nothing("strided tensors allocate nothing",
                                Tensors(5, {300, 200}, {1, 300}, 60'000, kBoth), large);
  a_warm_call_allocates_nothing("every other element allocates nothing",
                                Tensors(5, {20'000}, {2}, 40'000, kBoth), large);
  a_warm_call_allocates_nothing("tiny tensors allocate nothing", Tensors::contiguous(900, 3), large);
  a_warm_call_allocates_nothing("a tensor of several parts allocates nothing",
                                Tensors::contiguous(1, 5 * (1 << 20)), large);
  a_warm_call_allocates_nothing("statistics of many chunks allocate nothing",
                                Tensors::contiguous(1, 5 * (1 << 20), kWantStats), large);
  const Tensors many = Tensors::contiguous(40, 200'000);  // 32 MB, at most two tensors in a record below
  a_warm_call_allocates_nothing("a call of many records allocates nothing", many, config(64 * kMiB, 64));
  a_warm_call_allocates_nothing("dropped tensors allocate nothing", many,
                                config(16 * kMiB, 64, FullPolicy::kDrop), false);
  a_warm_call_allocates_nothing("degraded tensors allocate nothing", many,
                                config(16 * kMiB, 64, FullPolicy::kDegrade), false);
  a_warm_call_allocates_nothing("waiting for room that does not come allocates nothing", many,
                                config(16 * kMiB, 64, FullPolicy::kBlock), false);
  warm_calls_on_a_device();
  std::printf("%s\n", result() == 0 ? "no allocation" : "failed");
  return result();
}
