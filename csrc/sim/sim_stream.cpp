#include "sim/sim_stream.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstring>
#include <new>
#include <thread>

#include "base/signal_free_thread.hpp"
#include "sim/sim_kernels.hpp"

namespace tdcore {
namespace {

constexpr long kLookNs = 2'000'000;  // longest time until a worker stops after a request

/// Sleeps while the word is `value`, at most kLookNs. Orders no other access: ThreadSanitizer does not treat
/// this system call as synchronization.
void sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t value) noexcept {
  const timespec limit{.tv_sec = 0, .tv_nsec = kLookNs};
  (void)::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, &limit, nullptr, 0);
}

void wake_all(const std::atomic<std::uint32_t>& word) noexcept {
  (void)::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void store_word(void* to, std::uint64_t value) noexcept {
  // Release: pairs with the acquire of the consumer, as a commit of the host would.
  std::atomic_ref<std::uint64_t>(*static_cast<std::uint64_t*>(to)).store(value, std::memory_order_release);
}

std::uint64_t load_word(const void* from) noexcept {
  // Acquire: as store_word() of another stream.
  auto* const word = static_cast<std::uint64_t*>(const_cast<void*>(from));
  return std::atomic_ref<std::uint64_t>(*word).load(std::memory_order_acquire);
}

void add_violation(SimControl& control) noexcept {
  control.violations.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

struct SimStream::Node {
  SimWork work;
  std::atomic<Node*> next{nullptr};  // release in push(); pairs with the acquire of the worker
};

SimStream::SimStream(SimControl& control, std::uint64_t number, bool now)
    : control_(control),
      pace_(control.seed * 1000 + number, now ? 0 : control.delay_us),
      now_(now),
      last_(new Node),
      first_(last_) {
  if (!now) worker_ = start_signal_free_thread([this] { run(); });
}

SimStream::~SimStream() {
  if (worker_) worker_->join();  // the device has set `stopping`
  while (first_ != nullptr) {
    Node* const next = first_->next.load(std::memory_order_relaxed);
    delete first_;
    first_ = next;
  }
}

/// Waits until the queue has room for one more piece of work, as CUDA does. A wait of 10 s is a violation.
void SimStream::wait_for_queue() noexcept {
  if (control_.queue_limit == 0 || now_) return;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  for (;;) {
    const std::uint32_t pending =
        pushed_.load(std::memory_order_relaxed) - done_.load(std::memory_order_relaxed);
    if (pending < control_.queue_limit || leaving() || control_.lost.load(std::memory_order_relaxed)) return;
    if (std::chrono::steady_clock::now() > deadline) return add_violation(control_);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

bool SimStream::push(SimWork& work) noexcept {
  wait_for_queue();
  const std::scoped_lock lock(mutex_);
  if (now_) {
    if (control_.lost.load(std::memory_order_relaxed)) return true;
    Node alone;
    perform(work, alone);
    return true;
  }
  Node* const node = new (std::nothrow) Node;
  if (node == nullptr || !worker_) {
    delete node;
    return false;
  }
  node->work = std::move(work);
  Node* const before = last_;
  last_ = node;
  before->next.store(node, std::memory_order_release);  // from here on `before` belongs to the worker
  pushed_.fetch_add(1, std::memory_order_release);
  wake_all(pushed_);
  return true;
}

bool SimStream::leaving() const noexcept { return control_.stopping.load(std::memory_order_relaxed); }

/// Waits until the next piece of work may run. False if the worker must end.
bool SimStream::take_turn() noexcept {
  for (;;) {
    if (leaving()) return false;
    const std::uint32_t pushed = pushed_.load(std::memory_order_relaxed);
    const bool there = first_->next.load(std::memory_order_relaxed) != nullptr;
    if (there && !control_.paused.load(std::memory_order_relaxed)) return true;
    sleep_while(pushed_, pushed);
  }
}

void SimStream::run() noexcept {
  while (take_turn()) {
    // Acquire: pairs with the release in push().
    Node* const node = first_->next.load(std::memory_order_acquire);
    delete first_;
    first_ = node;
    pace_.pause();
    if (!control_.lost.load(std::memory_order_relaxed)) perform(node->work, *node);
    node->work.call = nullptr;
    node->work.event = nullptr;
    node->work.inlined = nullptr;
    node->work.collection = nullptr;
    node->work.graph = nullptr;
    done_.fetch_add(1, std::memory_order_relaxed);
  }
}

/// Waits for the event. False if it will not happen.
bool SimStream::wait_for(const SimEvent& event, std::uint32_t generation) noexcept {
  for (;;) {
    // Acquire: pairs with the release in perform() of the other stream.
    const std::uint32_t done = event.done.load(std::memory_order_acquire);
    if (static_cast<std::int32_t>(done - generation) >= 0) return true;
    if (leaving() || control_.lost.load(std::memory_order_relaxed) ||
        event.abandoned.load(std::memory_order_relaxed))
      return false;
    sleep_while(event.done, done);
  }
}

/// Runs a statistics kernel of a graph, unless its gate is closed.
void SimStream::perform_gated(const SimWork& work) noexcept {
  const std::uint64_t epoch = load_word(work.launch.gate);
  if (epoch == 0) return;
  if (!run_stats(pace_, work.launch)) add_violation(control_);
  store_word(work.launch.commit_word, epoch);
}

void SimStream::perform_launch(const SimWork& work) noexcept {
  if (work.launch.gate != nullptr) return perform_gated(work);
  const bool commits = work.kind != SimWork::Kind::kPack && work.launch.commit_word != nullptr;
  const bool early = commits && control_.early_words && pace_.draw(2) == 0;
  if (early) {
    store_word(work.launch.commit_word, work.launch.commit_value);
    pace_.pause();
  }
  const bool sound = work.kind == SimWork::Kind::kInline  ? run_inline(pace_, *work.inlined)
                     : work.kind == SimWork::Kind::kStats ? run_stats(pace_, work.launch)
                                                          : run_pack(pace_, work.launch);
  if (!sound) add_violation(control_);
  if (commits && !early) store_word(work.launch.commit_word, work.launch.commit_value);
}

/// Writes the records of a collection, beginning with any of them.
void SimStream::perform_collection(const device::Collection& collection) noexcept {
  const std::uint64_t first = pace_.draw(collection.count);
  for (std::uint32_t turn = 0; turn < collection.count; ++turn) {
    const device::CollectedRecord& record = collection.records[(first + turn) % collection.count];
    const bool early = record.commit_word != nullptr && control_.early_words && pace_.draw(2) == 0;
    const CollectedResults results = choose_results(collection, record);
    if (early) store_word(record.commit_word, record.commit_value);
    copy_results(pace_, collection, record, results);
    if (record.commit_word != nullptr && !early) store_word(record.commit_word, record.commit_value);
  }
}

void SimStream::perform(SimWork& work, const Node& node) noexcept {
  using Kind = SimWork::Kind;
  switch (work.kind) {
    case Kind::kCopyOut: {
      Node* const next = control_.early_words ? node.next.load(std::memory_order_acquire) : nullptr;
      if (next != nullptr && next->work.kind == Kind::kWord && pace_.draw(2) == 0) {
        store_word(next->work.to, next->work.bytes);
        next->work.to = nullptr;
        pace_.pause();
      }
      return copy_out(pace_, work.to, work.from, work.bytes);
    }
    case Kind::kCopy:
      return copy_in_pieces(pace_, work.to, work.from, work.bytes);
    case Kind::kFill:
      std::memset(work.to, 0, work.bytes);
      return;
    case Kind::kStats:
    case Kind::kPack:
    case Kind::kInline:
      return perform_launch(work);
    case Kind::kWord:
      if (work.to != nullptr) store_word(work.to, work.bytes);  // null: the word was written early
      return;
    case Kind::kRecord:
      // Release: pairs with the acquires in wait_for() and SimDevice::query_event().
      work.event->done.store(work.generation, std::memory_order_release);
      wake_all(work.event->done);
      return;
    case Kind::kWait:
      (void)wait_for(*work.event, work.generation);
      return;
    case Kind::kCall:
      work.call();
      return;
    case Kind::kGate:
      return store_word(work.to, load_word(work.from));
    case Kind::kDeviceWord:
      return store_word(work.to, work.bytes);
    case Kind::kCollect:
      return perform_collection(*work.collection);
  }
}

}  // namespace tdcore
