// A warm capture call allocates nothing, whatever it captures: every allocation of this process is counted.
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "captured.hpp"
#include "check.hpp"

namespace {

std::atomic<std::uint64_t> allocations{0};  // relaxed: read by the thread that captured

void count_allocation() noexcept { allocations.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

// Sanitizers bring a malloc of their own. Elsewhere glibc lets a program take its place; operator new uses
// it.
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
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace {

using namespace tdcore;
using namespace tdcore::testing;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// Allocations of the third of three equal calls; each finds the ring empty.
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
  std::printf("%s\n", result() == 0 ? "no allocation" : "failed");
  return result();
}
