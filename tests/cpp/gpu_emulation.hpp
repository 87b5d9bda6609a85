// gpu_emulation.hpp: runs the source of the kernels on the CPU, thread by thread, for tests only.
//
// Every thread of a block is a fiber (ucontext) that runs until it waits for others, at a barrier of its
// block or in an operation of its warp. Several blocks are in progress at a time, and the next block to run
// is random, so that the tests detect a missing barrier, a wrong counter or a dependence on order. Memory is
// host memory, so fences do nothing. Include this header before cuda/kernels.cuh, and call run_blocks().
//
// Threads: one launch at a time, on the caller's thread. Not under ThreadSanitizer (fibers).
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "check.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __grid_constant__
#define TDCORE_DEVICE inline
#define TDCORE_UNROLL
#define TDCORE_UNROLL_4
#define TDCORE_NO_UNROLL
#define TDCORE_SHARED(Type, name) Type& name = ::emulation::shared_memory<Type>()
#define TDCORE_ASSUME_GLOBAL(pointer)
#define TDCORE_NOTE_ACCESS(pointer) ::emulation::note_access(pointer)

struct alignas(16) uint4 {
  std::uint32_t x, y, z, w;
};
inline uint4 make_uint4(std::uint32_t x, std::uint32_t y, std::uint32_t z, std::uint32_t w) {
  return {x, y, z, w};
}

namespace emulation {

inline constexpr std::uint32_t kLanes = 32;
inline constexpr std::size_t kStackBytes = tdcore::testing::kSanitized ? 256 * 1024 : 64 * 1024;

/// A synchronization point of threads. All threads continue when the last thread has arrived.
struct Meeting {
  std::uint32_t expected = 0, arrived = 0;
  std::uint32_t round = 0;  // number of completed synchronizations
};

struct Warp {
  Meeting meeting;
  std::uint64_t values[2][kLanes];  // for two alternating rounds: no lane is more than one round ahead
};

struct Block;

struct Fiber {
  ucontext_t context;  // start of the fiber; later it continues at `resume`
  void* resume[5];     // of __builtin_setjmp, because swapcontext() makes a system call every time
  bool started = false;
  std::unique_ptr<unsigned char[]> stack{new unsigned char[kStackBytes]};
  Block* block = nullptr;
  std::uint32_t thread = 0;
  const Meeting* waits_for = nullptr;  // the fiber continues when its round is no longer `round`
  std::uint32_t round = 0;
  bool done = false;
  void* fake_stack = nullptr;  // for AddressSanitizer
};

struct Block {
  std::uint32_t index = 0, living = 0;
  Meeting barrier;
  std::vector<Warp> warps;
  std::vector<Fiber> fibers;
  alignas(16) unsigned char shared[48 * 1024];
};

struct Grid {
  std::uint32_t blocks = 0, threads = 0;
  std::function<void()> kernel;
  void* scheduler[5];
  void* scheduler_fake_stack = nullptr;
  const void* scheduler_stack = nullptr;
  std::size_t scheduler_stack_bytes = 0;
  Fiber* running = nullptr;
};
inline Grid grid;

template <class Type>
Type& shared_memory() {
  static_assert(sizeof(Type) <= sizeof(Block::shared));
  return *reinterpret_cast<Type*>(grid.running->block->shared);
}

// ---- accesses of memory -----------------------------------------------------------------------------------

/// Sectors of 32 bytes that the warps access, while `counted`. An access of a warp is the n-th access of its
/// lanes.
struct Accesses {
  bool counted = false;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> of_thread;  // block and thread
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::set<std::uintptr_t>> of_warp;

  std::size_t sectors() const {
    std::size_t count = 0;
    for (const auto& [access, touched] : of_warp) count += touched.size();
    return count;
  }
};
inline Accesses accesses;

template <class Unit>
void note_access(const Unit* pointer) {
  if (!accesses.counted) return;
  const std::uint32_t block = grid.running->block->index, thread = grid.running->thread;
  const std::uint32_t number = accesses.of_thread[{block, thread}]++;
  if (pointer == nullptr) return;
  std::set<std::uintptr_t>& touched = accesses.of_warp[{block, thread / kLanes, number}];
  const auto first = reinterpret_cast<std::uintptr_t>(pointer);
  for (std::uintptr_t at = first / 32; at <= (first + sizeof(Unit) - 1) / 32; ++at) touched.insert(at);
}

// ---- switches ---------------------------------------------------------------------------------------------

// AddressSanitizer is notified of switches. It must not also clear the stack at each jump (with a system
// call), because the fiber later returns to the frames that it has left.
#define TDCORE_SWITCH __attribute__((noinline, no_sanitize("address")))

[[noreturn]] TDCORE_SWITCH inline void jump(void** to) { __builtin_longjmp(to, 1); }

TDCORE_SWITCH inline void enter_fiber(Fiber& fiber) {
  grid.running = &fiber;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&grid.scheduler_fake_stack, fiber.stack.get(), kStackBytes);
#endif
  if (__builtin_setjmp(grid.scheduler) == 0) {
    if (fiber.started) jump(fiber.resume);
    fiber.started = true;
    setcontext(&fiber.context);
  }
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(grid.scheduler_fake_stack, nullptr, nullptr);
#endif
}

TDCORE_SWITCH inline void leave_fiber(bool for_good) {
  Fiber& fiber = *grid.running;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &fiber.fake_stack, grid.scheduler_stack,
                                 grid.scheduler_stack_bytes);
#else
  static_cast<void>(for_good);
#endif
  if (__builtin_setjmp(fiber.resume) == 0) jump(grid.scheduler);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(grid.running->fake_stack, nullptr, nullptr);
#endif
}

inline void fiber_main() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &grid.scheduler_stack, &grid.scheduler_stack_bytes);
#endif
  grid.kernel();
  grid.running->done = true;
  leave_fiber(true);
}

inline void meet(Meeting& meeting) {
  if (++meeting.arrived == meeting.expected) {
    meeting.arrived = 0;
    ++meeting.round;
    return;
  }
  Fiber& fiber = *grid.running;
  fiber.waits_for = &meeting;
  fiber.round = meeting.round;
  leave_fiber(false);
}

// ---- collective operations of a warp ----------------------------------------------------------------------

/// Every lane passes a value and gets the values of all lanes.
inline const std::uint64_t* exchange(std::uint64_t value) {
  Fiber& fiber = *grid.running;
  Warp& warp = fiber.block->warps[fiber.thread / kLanes];
  std::uint64_t* values = warp.values[warp.meeting.round % 2];
  values[fiber.thread % kLanes] = value;
  meet(warp.meeting);
  return values;
}

template <class Value>
Value shuffle(Value value, std::uint32_t from) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  const std::uint64_t* all = exchange(bits);
  std::memcpy(&value, &all[from < kLanes ? from : grid.running->thread % kLanes], sizeof value);
  return value;
}

// ---- a launch ---------------------------------------------------------------------------------------------

inline void start_block(Block& block, std::uint32_t index, std::mt19937& random) {
  block.index = index;
  block.living = grid.threads;
  block.barrier = {grid.threads, 0, 0};
  block.warps.assign(grid.threads / kLanes, Warp{});
  for (Warp& warp : block.warps) warp.meeting.expected = kLanes;
  for (unsigned char& byte : block.shared) byte = static_cast<unsigned char>(random());  // never zeroed
  block.fibers.resize(grid.threads);
  for (std::uint32_t thread = 0; thread < grid.threads; ++thread) {
    Fiber& fiber = block.fibers[thread];
    fiber.block = &block;
    fiber.thread = thread;
    fiber.waits_for = nullptr;
    fiber.done = fiber.started = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, fiber_main, 0);
  }
}

/// Runs the threads of a block that can continue, once each. False if no thread can continue.
inline bool step_block(Block& block, std::mt19937& random) {
  bool moved = false;
  const auto start = static_cast<std::uint32_t>(random());
  for (std::uint32_t i = 0; i < grid.threads; ++i) {
    // An odd factor: all threads, in an order that differs from step to step.
    Fiber& fiber = block.fibers[(start + i * (2 * (start >> 16) + 1)) % grid.threads];
    if (fiber.done || (fiber.waits_for != nullptr && fiber.waits_for->round == fiber.round)) continue;
    fiber.waits_for = nullptr;
    enter_fiber(fiber);
    moved = true;
    if (fiber.done) --block.living;
  }
  return moved;
}

/// Runs `kernel` as `blocks` blocks of `threads` (a power of two) threads, at most `resident` at a time, in
/// an order that depends on the seed. Throws if threads wait for each other forever.
inline void run_blocks(std::uint32_t blocks, std::uint32_t threads, std::uint32_t resident, unsigned seed,
                       std::function<void()> kernel) {
  std::mt19937 random{seed};
  grid.blocks = blocks;
  grid.threads = threads;
  grid.kernel = std::move(kernel);
  std::vector<std::uint32_t> waiting(blocks);
  for (std::uint32_t i = 0; i < blocks; ++i) waiting[i] = i;
  std::shuffle(waiting.begin(), waiting.end(), random);
  static std::vector<std::unique_ptr<Block>> idle;  // stacks are kept between launches
  std::vector<std::unique_ptr<Block>> running;
  while (!waiting.empty() || !running.empty()) {
    while (running.size() < resident && !waiting.empty()) {
      std::unique_ptr<Block> block = idle.empty() ? std::make_unique<Block>() : std::move(idle.back());
      if (!idle.empty()) idle.pop_back();
      start_block(*block, waiting.back(), random);
      waiting.pop_back();
      running.push_back(std::move(block));
    }
    const std::size_t which = random() % running.size();
    if (!step_block(*running[which], random)) throw std::runtime_error("threads wait for ever");
    if (running[which]->living == 0) {
      idle.push_back(std::move(running[which]));
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(which));
    }
  }
}

}  // namespace emulation

// ---- the names that kernels use ---------------------------------------------------------------------------

struct EmulatedIndex {
  std::uint32_t (*get)();
  operator std::uint32_t() const { return get(); }
};
inline const struct {
  EmulatedIndex x;
} threadIdx{{[] { return emulation::grid.running->thread; }}};
inline const struct {
  EmulatedIndex x;
} blockIdx{{[] { return emulation::grid.running->block->index; }}};
inline const struct {
  EmulatedIndex x;
} gridDim{{[] { return emulation::grid.blocks; }}};

inline void __syncthreads() { emulation::meet(emulation::grid.running->block->barrier); }
inline void __syncwarp() { emulation::exchange(0); }
inline void __threadfence() {}
inline void __threadfence_system() {}

template <class Value>
Value __shfl_xor_sync(std::uint32_t, Value value, std::uint32_t mask) {
  return emulation::shuffle(value, (emulation::grid.running->thread % emulation::kLanes) ^ mask);
}
template <class Value>
Value __shfl_down_sync(std::uint32_t, Value value, std::uint32_t distance) {
  return emulation::shuffle(value, emulation::grid.running->thread % emulation::kLanes + distance);
}
inline std::uint32_t __ballot_sync(std::uint32_t, bool vote) {
  const std::uint64_t* all = emulation::exchange(vote ? 1 : 0);
  std::uint32_t votes = 0;
  for (std::uint32_t lane = 0; lane < emulation::kLanes; ++lane) {
    votes |= static_cast<std::uint32_t>(all[lane]) << lane;
  }
  return votes;
}
inline int __popc(std::uint32_t bits) { return std::popcount(bits); }
inline std::uint32_t atomicAdd(std::uint32_t* word, std::uint32_t value) {
  const std::uint32_t before = *word;
  *word += value;
  return before;
}

namespace tdcore::device {
/// The last stored value, and the number of stores, for the tests.
inline std::function<void(std::uint64_t*, std::uint64_t)> on_store_release;
inline void store_release_system(std::uint64_t* word, std::uint64_t value) {
  if (on_store_release) on_store_release(word, value);
  *word = value;
}
}  // namespace tdcore::device
