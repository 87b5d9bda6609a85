#include "device/device_graphs.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "device/device_table.hpp"
#include "stats/cpu.hpp"

namespace tdcore {
namespace {

constexpr std::uint64_t kBlockBytes = std::uint64_t{256} << 10;  // smallest block
constexpr std::uint64_t kWordBytes = std::uint64_t{64} << 10;    // a block of the armed word and the claims
constexpr std::uint32_t kBlockWords = kWordBytes / sizeof(std::uint64_t);
constexpr std::uint64_t kStagingBytes = std::uint64_t{256} << 10;  // far more than a batch needs
constexpr std::chrono::milliseconds kUploadTimeout{500};
constexpr std::chrono::microseconds kUploadPause{10};

std::uint64_t device_aligned(std::uint64_t bytes) noexcept { return round_up(bytes, kDeviceAlignBytes); }

/// Called by the device when a graph has ended. data: a new std::shared_ptr.
void graph_ended(void* data) {
  const std::unique_ptr<std::shared_ptr<std::atomic<bool>>> ended(
      static_cast<std::shared_ptr<std::atomic<bool>>*>(data));
  (*ended)->store(true, std::memory_order_release);  // pairs with the acquire in sweep()
}

/// FNV-1a of the names and the call.
std::uint64_t signature_of(std::span<const TensorRequest> requests, std::uint32_t call) noexcept {
  std::uint64_t hash = 0xCBF29CE484222325;
  const auto add = [&hash](std::uint32_t word) { hash = (hash ^ word) * 0x100000001B3; };
  add(call);
  for (const TensorRequest& request : requests) add(request.name);
  return hash;
}

/// Copies the requests and the shapes, which belong to the caller.
std::shared_ptr<GraphBatch> batch_of(std::span<const TensorRequest> requests, std::uint32_t call) {
  auto batch = std::make_shared<GraphBatch>();
  batch->call = call;
  batch->requests.assign(requests.begin(), requests.end());
  for (const TensorRequest& request : requests)
    batch->shapes.insert(batch->shapes.end(), request.tensor.shape,
                         request.tensor.shape + request.tensor.ndim);
  const std::int64_t* shape = batch->shapes.data();
  for (TensorRequest& request : batch->requests) {
    request.tensor.shape = shape;
    request.tensor.strides = nullptr;
    shape += request.tensor.ndim;
  }
  return batch;
}

}  // namespace

std::size_t DeviceGraphs::most_items() const noexcept {
  const std::uint64_t fit = record_bytes_ > sizeof(BatchHeader)
                                ? (record_bytes_ - sizeof(BatchHeader)) / (sizeof(Entry) + kTailBytes)
                                : 0;
  return static_cast<std::size_t>(std::clamp<std::uint64_t>(fit, 1, device::kCollectedEntries));
}

// ---- memory

bool DeviceGraphs::wait_for_uploads(Device& device) noexcept {
  const auto start = std::chrono::steady_clock::now();
  const auto deadline = timed_out_ ? start : start + kUploadTimeout;
  for (;;) {
    const EventState state = device.query_event(uploaded_);
    timed_out_ = state == EventState::kPending && std::chrono::steady_clock::now() >= deadline;
    if (state != EventState::kPending || timed_out_) return state == EventState::kDone;
    std::this_thread::sleep_for(kUploadPause);
  }
}

bool DeviceGraphs::zero(Device& device, void* memory, std::uint64_t bytes) noexcept {
  return device.fill_zero(uploads_, memory, bytes);
}

/// Allocates everything that all graphs share, at the first batch.
bool DeviceGraphs::set_up(Device& device) {
  if (uploads_ == 0) uploads_ = device.make_stream();
  if (uploaded_ == 0) uploaded_ = device.make_event();
  if (staging_ == nullptr) staging_ = static_cast<std::byte*>(device.allocate_host(kStagingBytes));
  if (uploads_ == 0 || uploaded_ == 0 || staging_ == nullptr) return false;
  return !words_.empty() || (add_words(device) && device.record_event(uploaded_, uploads_));
}

/// Adds a block of words, which are zero when the next upload has ended.
bool DeviceGraphs::add_words(Device& device) {
  words_.reserve(words_.size() + 1);
  const bool first = words_.empty();
  if (!first && allocated_ + kWordBytes > most_bytes_) return false;
  auto* const words = static_cast<std::uint64_t*>(device.allocate(kWordBytes));
  if (words == nullptr || !zero(device, words, kWordBytes)) return false;
  if (!first) allocated_ += kWordBytes;
  words_.push_back(words);
  return true;
}

/// Memory of a graph; null if the pool is used up.
std::byte* DeviceGraphs::take(Device& device, Graph& graph, std::uint64_t bytes) {
  bytes = device_aligned(bytes);
  if (graph.blocks.empty() || graph.blocks.back().bytes - graph.used < bytes) {
    graph.blocks.reserve(graph.blocks.size() + 1);
    const std::uint64_t wanted = std::max(kBlockBytes, std::bit_ceil(bytes));
    auto best = free_.end();
    for (auto at = free_.begin(); at != free_.end(); ++at) {
      if (at->bytes >= bytes && (best == free_.end() || at->bytes < best->bytes)) best = at;
    }
    if (best != free_.end()) {
      graph.blocks.push_back(*best);
      free_.erase(best);
    } else {
      if (wanted > most_bytes_ || allocated_ > most_bytes_ - wanted) return nullptr;
      free_.reserve(free_.size() + graphs_.size() + 16);  // sweep() must not allocate
      auto* const memory = static_cast<std::byte*>(device.allocate(wanted));
      if (memory == nullptr) return nullptr;
      allocated_ += wanted;
      graph.blocks.push_back({memory, wanted});
    }
    graph.used = 0;
  }
  std::byte* const taken = graph.blocks.back().memory + graph.used;
  graph.used += bytes;
  return taken;
}

// ---- graphs and batches

DeviceGraphs::Graph* DeviceGraphs::graph_of(Device& device, StreamHandle stream) {
  const std::uint64_t id = device.capture_id(stream);
  if (id == 0) return nullptr;
  const auto found = std::find_if(graphs_.begin(), graphs_.end(), [id](const Graph& graph) {
    return graph.id == id && !graph.ended->load(std::memory_order_relaxed);
  });
  if (found != graphs_.end()) return &*found;
  Graph graph;
  graph.id = id;
  graph.ended = std::make_shared<std::atomic<bool>>(false);
  graphs_.reserve(graphs_.size() + 1);
  auto watched = std::make_unique<std::shared_ptr<std::atomic<bool>>>(graph.ended);
  if (!device.watch_graph(stream, graph_ended, watched.get())) {
    (void)watched.release();  // the device may have stored it
    return nullptr;
  }
  (void)watched.release();
  graphs_.push_back(std::move(graph));
  return &graphs_.back();
}

/// The scratch of a graph on a stream. Null if there is no room.
DeviceGraphs::Scratch* DeviceGraphs::scratch_of(Device& device, Graph& graph, StreamHandle stream,
                                                std::uint64_t tiles, std::uint64_t counters) {
  auto found = std::find_if(graph.scratches.begin(), graph.scratches.end(),
                            [stream](const Scratch& scratch) { return scratch.stream == stream; });
  if (found == graph.scratches.end()) {
    auto* const gate = reinterpret_cast<std::uint64_t*>(take(device, graph, sizeof(std::uint64_t)));
    if (gate == nullptr || !zero(device, gate, sizeof *gate)) return nullptr;
    graph.scratches.push_back({.stream = stream, .gate = gate});
    found = graph.scratches.end() - 1;
  }
  if (found->tiles < tiles) {
    // More than is needed, so that a sequence of growing batches does not take memory for each of them.
    std::uint64_t count = std::max(tiles, 2 * found->tiles);
    std::byte* memory = take(device, graph, count * sizeof(TensorStats));
    if (memory == nullptr) memory = take(device, graph, (count = tiles) * sizeof(TensorStats));
    if (memory == nullptr) return nullptr;
    found->partials = reinterpret_cast<TensorStats*>(memory);
    found->tiles = count;
  }
  if (found->counter_count < counters) {
    const std::uint64_t count = std::max(counters, 2 * found->counter_count);
    std::byte* const memory = take(device, graph, count * sizeof(std::uint32_t));
    if (memory == nullptr || !zero(device, memory, count * sizeof(std::uint32_t))) return nullptr;
    found->counters = reinterpret_cast<std::uint32_t*>(memory);
    found->counter_count = count;
  }
  return &*found;
}

std::uint64_t* DeviceGraphs::claim_word(std::uint32_t number) const noexcept {
  return words_[number / kBlockWords] + number % kBlockWords;
}

/// The claim of batches of the same tensors: a word that has the epoch of the last batch that counted. Null
/// if there is no room for the word.
DeviceGraphs::Claim* DeviceGraphs::claim_of(Device& device, std::span<const TensorRequest> requests,
                                            std::uint32_t call) {
  const std::uint64_t signature = signature_of(requests, call);
  if (const auto found = claims_.find(signature); found != claims_.end()) return &found->second;
  const auto next = static_cast<std::uint32_t>(claims_.size() + 1);  // 0 is the armed word
  if (next / kBlockWords == words_.size() && !add_words(device)) return nullptr;
  return &claims_.emplace(signature, Claim{.number = next}).first->second;
}

bool DeviceGraphs::upload(Device& device, std::byte* to, std::uint64_t bytes) noexcept {
  return device.copy_to_device(uploads_, to, staging_, bytes) && device.record_event(uploaded_, uploads_) &&
         wait_for_uploads(device);
}

bool DeviceGraphs::add(Device& device, std::span<const TensorRequest> requests, std::uint32_t call,
                       StreamHandle stream) noexcept {
  try {
    return add_batch(device, requests, call, stream);
  } catch (const std::exception&) {  // no host memory
    return false;
  }
}

bool DeviceGraphs::add_batch(Device& device, std::span<const TensorRequest> requests, std::uint32_t call,
                             StreamHandle stream) {
  if (device.capture_id(stream) == 0 || requests.size() > most_items()) return false;
  if (!set_up(device) || !wait_for_uploads(device)) return false;  // the staging memory is in use
  Graph* const graph = graph_of(device, stream);
  Claim* const claim = graph == nullptr ? nullptr : claim_of(device, requests, call);
  if (claim == nullptr) return false;
  if (claim->graph == graph->id) return true;  // each replay also computes the first batch, which counts
  items_.clear();
  for (const TensorRequest& request : requests) {
    const bool stats = request.flags != 0 && has_stats(request.tensor.dtype);
    items_.push_back({.request = &request, .elements = element_count(request.tensor), .stats = stats});
  }
  const TableSize size = measure_table(items_);
  if (size.upload_bytes > kStagingBytes) return false;
  const std::uint64_t counters = device::counters_of(size.stats_tiles, size.stats) + 1;
  Scratch* const scratch = scratch_of(device, *graph, stream, size.stats_tiles, counters);
  std::byte* const table = take(device, *graph, size.upload_bytes);
  std::byte* const results = take(device, *graph, requests.size() * sizeof(Entry));
  auto* const ran = reinterpret_cast<std::uint64_t*>(take(device, *graph, sizeof(std::uint64_t)));
  if (scratch == nullptr || table == nullptr || results == nullptr || ran == nullptr ||
      !zero(device, ran, sizeof *ran))
    return false;
  device::Launch launch =
      fill_table(items_, size,
                 {.host = staging_, .device = table, .first_stats = reinterpret_cast<TensorStats*>(results)})
          .stats;
  launch.partials = scratch->partials;
  launch.finished_items = scratch->counters;
  launch.finished_tiles = scratch->counters + 1;
  launch.commit_word = ran;
  launch.gate = scratch->gate;
  const std::shared_ptr<GraphBatch> batch = batch_of(requests, call);
  batch->results = results;
  batch->ran = ran;
  batch->claim = claim_word(claim->number);
  batch->claim_number = claim->number;
  graph->batches.reserve(graph->batches.size() + 1);
  if (!upload(device, table, size.upload_bytes)) return false;
  // The gate is the first work of the graph on the stream. Its memory is zeroed before the upload.
  scratch->has_gate = scratch->has_gate || device.open_gate(stream, scratch->gate, words_[0]);
  if (!scratch->has_gate) return false;
  if (!device.launch(stream, Kernel::kStats, launch)) {
    scratch->counter_count = 0;  // a part of the launch may be in the graph, and leaves counters above zero
    return false;
  }
  graph->batches.push_back(batch);
  claim->graph = graph->id;
  return true;
}

std::uint64_t DeviceGraphs::tensors() const noexcept {
  std::uint64_t count = 0;
  for (const Graph& graph : graphs_) {
    for (const std::shared_ptr<const GraphBatch>& batch : graph.batches) count += batch->requests.size();
  }
  return count;
}

// ---- epochs

bool DeviceGraphs::arm(Device& device, StreamHandle stream) noexcept {
  for (Graph& graph : graphs_) graph.over = graph.ended->load(std::memory_order_acquire);  // as in sweep()
  armed_now_ = device.set_word(stream, words_[0], epoch_ + 1);
  if (armed_now_) ++epoch_;
  return armed_now_;
}

bool DeviceGraphs::disarm(Device& device, StreamHandle stream) noexcept {
  end_epoch();
  return device.set_word(stream, words_[0], 0);
}

void DeviceGraphs::note_captured(std::span<const TensorRequest> requests) noexcept {
  for (const TensorRequest& request : requests) {
    if (!has_name(request.name) || request.status != EntryStatus::kOk) continue;
    try {
      if (request.name >= captured_in_.size()) captured_in_.resize(request.name + std::size_t{1});
    } catch (const std::exception&) {  // no host memory: the tensor may get two rows
      return;
    }
    captured_in_[request.name] = epoch_;
  }
}

std::vector<std::shared_ptr<const GraphBatch>> DeviceGraphs::begin_collection() {
  std::vector<std::shared_ptr<const GraphBatch>> all;
  for (auto graph = graphs_.rbegin(); graph != graphs_.rend(); ++graph)
    if (!graph->over) all.insert(all.end(), graph->batches.begin(), graph->batches.end());
  ++collections_;
  return all;
}

void DeviceGraphs::end_collection(std::uint64_t launched) noexcept {
  --collections_;
  for (Graph& graph : graphs_) graph.collected = launched;
}

void DeviceGraphs::sweep(std::uint64_t done) noexcept {
  if (collections_ > 0) return;
  try {
    for (std::size_t i = 0; i < graphs_.size();) {
      Graph& graph = graphs_[i];
      const bool in_epoch = armed_now_ && !graph.over;  // its replays are not collected yet
      // Acquire: pairs with the release in graph_ended(), after the last work of the graph.
      if (in_epoch || !graph.ended->load(std::memory_order_acquire) || graph.collected > done) {
        ++i;
        continue;
      }
      free_.insert(free_.end(), graph.blocks.begin(), graph.blocks.end());
      graphs_.erase(graphs_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  } catch (const std::exception&) {  // no host memory: the next call tries again
  }
}

bool DeviceGraphs::close(Device& device) noexcept {
  if (!words_.empty()) (void)device.set_word(uploads_, words_[0], 0);
  return std::any_of(graphs_.begin(), graphs_.end(), [](const Graph& graph) {
    return !graph.ended->load(std::memory_order_acquire);  // as in sweep()
  });
}

}  // namespace tdcore
