// device_graphs.hpp: the batches of tensors whose statistics the kernels of CUDA graphs compute.
//
// A capture call on a stream that is being captured into a graph adds one batch: a table and results in
// device memory, and one launch of the statistics kernel in the graph. A replay writes the results again. The
// launch does nothing unless the graph's *gate* is open. The first work of a graph on a stream copies the
// *armed word* to the gate, so that all later launches of this replay decide alike. The armed word has the
// number of the *epoch*: the work of a training stream between arm() and the collection of the results. A
// launch that has run stores the epoch. So a collection recognizes the batches that were replayed in its
// epoch. Of the batches of one graph with equal names and call, only the first one is added.
//
// Memory: blocks from a pool with a limit. Blocks of a graph are used again when the graph and its executable
// copies have ended. The batches of one graph and stream run one after the other, so they share the partial
// results and the counters. A graph must therefore not be instantiated twice and replayed on two streams at
// the same time.
//
// Nothing is enqueued on the captured stream except the gate and the launches. The table is uploaded on a
// stream of its own, and the host waits for the upload (some 10 us, at most kUploadTimeout), so that the
// first replay finds the table. This is the only place where the host waits for the device. Recording a graph
// takes milliseconds, and happens once.
//
// The graph must use the tensors itself, or their memory must live as long as the graph.
// Threads: one at a time (DeviceEngine's mutex). A GraphBatch is constant.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "capture/capture.hpp"
#include "capture/capture_values.hpp"
#include "device/device.hpp"

namespace tdcore {

/// Tensors of one capture call into a graph. Result i belongs to request i.
struct GraphBatch {
  std::vector<TensorRequest> requests;  // shapes are in `shapes`; no strides, and no valid data
  std::vector<std::int64_t> shapes;
  std::byte* results = nullptr;  // device memory; result i is i * sizeof(Entry) bytes after it
  std::uint64_t* ran = nullptr;  // device memory: epoch of the last replay that computed the results
  std::uint64_t* claim = nullptr;
  std::uint32_t claim_number = 0;  // of the claim
  std::uint32_t call = 0;          // StepContext::call of the capture
};

class DeviceGraphs {
 public:
  /// most_bytes: limit of the device memory.
  explicit DeviceGraphs(std::uint64_t most_bytes) noexcept : most_bytes_(most_bytes) {}
  /// Sets the limit of a record, which contains whole batches. Called once, before the first batch.
  void limit_records(std::uint64_t bytes) noexcept { record_bytes_ = bytes; }

  /// Bytes behind the entries of a record, for each entry: what the device reads to collect it.
  static constexpr std::uint64_t kTailBytes = sizeof(device::CollectedBatch) + sizeof(device::CollectedEntry);
  /// Maximum number of tensors of a record, and so of a batch; at least 1.
  std::size_t most_items() const noexcept;
  /// Adds a batch of at most most_items() tensors of the stream's device to the graph that the stream is
  /// being captured into. False if there is no room, or if the device rejects the work.
  bool add(Device& device, std::span<const TensorRequest> requests, std::uint32_t call,
           StreamHandle stream) noexcept;

  bool any() const noexcept { return !graphs_.empty(); }
  /// Number of tensors in all batches.
  std::uint64_t tensors() const noexcept;
  /// Begins an epoch: replays that follow on the stream, or wait for it, compute their results.
  bool arm(Device& device, StreamHandle stream) noexcept;
  /// Ends the epoch. disarm(): also for the device, so that replays that follow on the stream compute
  /// nothing.
  void end_epoch() noexcept { armed_now_ = false; }
  bool disarm(Device& device, StreamHandle stream) noexcept;
  std::uint64_t epoch() const noexcept { return epoch_; }
  bool armed() const noexcept { return armed_now_; }

  /// Notes the names of tensors that are captured outside of graphs in this epoch.
  void note_captured(std::span<const TensorRequest> requests) noexcept;
  bool was_captured(std::uint32_t name) const noexcept {
    return name < captured_in_.size() && captured_in_[name] == epoch_;
  }

  /// All batches; those of the newest graph first. They stay valid until end_collection().
  std::vector<std::shared_ptr<const GraphBatch>> begin_collection();
  /// launched: number of launches so far, including those that read the results.
  void end_collection(std::uint64_t launched) noexcept;
  /// Frees the memory of graphs that have ended, unless this epoch may have results of them. done: number of
  /// launches that have ended.
  void sweep(std::uint64_t done) noexcept;

  /// Closes the gates of later replays. Whether graphs exist that may still be replayed. Then the device's
  /// memory and its kernels must not be freed.
  bool close(Device& device) noexcept;

 private:
  struct Block {
    std::byte* memory;
    std::uint64_t bytes;
  };
  /// Memory that the batches of one graph on one stream share.
  struct Scratch {
    StreamHandle stream = 0;
    std::uint64_t* gate = nullptr;
    bool has_gate = false;  // the graph contains the copy to the gate
    TensorStats* partials = nullptr;
    std::uint32_t* counters = nullptr;
    std::uint64_t tiles = 0;
    std::uint64_t counter_count = 0;
  };
  struct Graph {
    std::uint64_t id = 0;
    std::shared_ptr<std::atomic<bool>> ended;  // release in the watcher; acquire in sweep()
    std::vector<Scratch> scratches;
    std::vector<std::shared_ptr<const GraphBatch>> batches;
    std::vector<Block> blocks;
    std::uint64_t used = 0;       // bytes of the last block
    std::uint64_t collected = 0;  // number of launches at the last collection
    bool over = false;            // had ended before the epoch began, so this epoch has no replays of it
  };

  bool set_up(Device& device);
  bool add_words(Device& device);
  bool add_batch(Device& device, std::span<const TensorRequest> requests, std::uint32_t call,
                 StreamHandle stream);
  Graph* graph_of(Device& device, StreamHandle stream);
  Scratch* scratch_of(Device& device, Graph& graph, StreamHandle stream, std::uint64_t tiles,
                      std::uint64_t counters);
  std::byte* take(Device& device, Graph& graph, std::uint64_t bytes);
  struct Claim {
    std::uint32_t number = 0;
    std::uint64_t graph = 0;  // the last graph with these tensors
  };
  Claim* claim_of(Device& device, std::span<const TensorRequest> requests, std::uint32_t call);
  std::uint64_t* claim_word(std::uint32_t number) const noexcept;
  bool upload(Device& device, std::byte* to, std::uint64_t bytes) noexcept;
  bool zero(Device& device, void* memory, std::uint64_t bytes) noexcept;
  bool wait_for_uploads(Device& device) noexcept;

  const std::uint64_t most_bytes_;
  std::uint64_t record_bytes_ = 0;
  std::uint64_t allocated_ = 0;
  std::vector<Block> free_;
  std::vector<Graph> graphs_;  // in the order of their captures
  std::vector<PlannedTensor> items_;
  StreamHandle uploads_ = 0;
  EventHandle uploaded_ = 0;
  bool timed_out_ = false;             // the upload in progress has been waited for: later calls only look
  std::byte* staging_ = nullptr;       // pinned; a table on its way to the device
  std::vector<std::uint64_t*> words_;  // blocks of device memory: the armed word, then the claims
  std::unordered_map<std::uint64_t, Claim> claims_;  // by names and call
  std::vector<std::uint64_t> captured_in_;  // by name: the last epoch with a capture outside of graphs
  std::uint64_t epoch_ = 0;
  std::uint32_t collections_ = 0;  // in progress
  bool armed_now_ = false;
};

}  // namespace tdcore
