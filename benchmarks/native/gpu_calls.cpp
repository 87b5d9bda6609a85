// gpu_calls.cpp: cost of one capture call for the calling thread on the host.
//
// Measures the time from call to return, while a consumer empties the rings. Between calls, the caller waits
// until no record is in flight. So the time includes planning, writing of headers, and enqueuing, but not the
// work of the device.
// Threads: the caller, and the consumer.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <thread>

#include "device/device_capture.hpp"
#include "gpu_device.hpp"
#include "ring/consumer/consumer.hpp"

namespace tdcore::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// Consumes all records and releases their room, until it is stopped.
class Drain {
 public:
  explicit Drain(const std::vector<std::shared_ptr<RingMemory>>& lanes) : consumer_(lanes) {
    thread_ = std::thread([this] {
      while (!stop_.load(std::memory_order_relaxed)) {
        const Mark first = consumer_.released();
        while (const auto record = consumer_.next(false)) {
          taken_.fetch_add(1, std::memory_order_release);  // pairs with the acquire in taken()
        }
        consumer_.release(first, consumer_.mark());
      }
    });
  }
  ~Drain() {
    stop_.store(true, std::memory_order_relaxed);
    thread_.join();
  }
  Drain(const Drain&) = delete;
  Drain& operator=(const Drain&) = delete;

  std::uint64_t taken() const noexcept { return taken_.load(std::memory_order_acquire); }

 private:
  Consumer consumer_;
  std::atomic<bool> stop_{false};  // relaxed: only ends the loop
  std::atomic<std::uint64_t> taken_{0};
  std::thread thread_;
};

void wait_until_idle(const DeviceCapture& capture) {
  const auto begun = Clock::now();
  while (capture.busy()) {
    if (Clock::now() - begun > std::chrono::seconds(60))
      throw std::runtime_error("a capture did not end within 60 s");
    std::this_thread::yield();
  }
}

/// Median microseconds of a call with these requests.
double microseconds(DeviceCapture& capture, const std::vector<TensorRequest>& requests, StreamHandle stream,
                    int calls) {
  std::vector<double> times;
  for (int i = 0; i < calls; ++i) {
    wait_until_idle(capture);
    const auto begun = Clock::now();
    const CaptureResult result = capture.capture(requests, StepContext{i, i, 1, 0}, stream);
    const std::chrono::duration<double, std::micro> taken = Clock::now() - begun;
    if (result.not_kept != 0)
      throw std::runtime_error("a capture dropped tensors: " + capture.report().error);
    if (i >= calls / 4) times.push_back(taken.count());  // the first calls are a warm-up
  }
  return median(times);
}

}  // namespace

std::string call_costs(const Options& options) {
  RingConfig config;
  config.data_bytes = std::uint64_t{1} << 20;
  config.slots = 1024;
  config.device_lanes = 1;
  config.device_lane_bytes = std::uint64_t{256} << 20;
  config.device_lane_slots = 1024;
  Ring ring(config);
  const std::shared_ptr<Ring> lane = ring.lanes()[0];
  std::string why;
  if (!lane->take_memory(&why)) throw std::runtime_error("no memory for the lane: " + why);
  std::unique_ptr<Device> owned = open_device(options.device);
  Device& device = *owned;
  const StreamHandle stream = device.make_stream();
  constexpr std::int64_t kElements = 1024;
  auto* data = static_cast<float*>(device_memory(device, 500 * kElements * sizeof(float)));
  DeviceCapture capture(std::move(owned), lane, ring, DeviceCaptureConfig{});
  if (!capture.report().error.empty()) throw std::runtime_error(capture.report().error);
  Drain drain({ring.memory(), lane->memory()});
  const int calls = options.quick ? 40 : 400;
  std::vector<std::string> rows;
  for (const int tensors : {1, 160, 500}) {
    for (const auto& [flags, what] :
         {std::pair{1, "values"}, std::pair{2, "statistics"}, std::pair{3, "both"}}) {
      std::vector<TensorRequest> requests(static_cast<std::size_t>(tensors));
      for (std::size_t i = 0; i < requests.size(); ++i) {
        requests[i].tensor = TensorView{data + i * kElements, &kElements, nullptr, 1, Dtype::kF32};
        requests[i].name = static_cast<std::uint32_t>(i);
        requests[i].flags = static_cast<std::uint8_t>(flags);
      }
      const double taken = microseconds(capture, requests, stream, calls);
      rows.push_back(object({field("tensors", tensors), field("what", std::string(what)), field("us", taken),
                             field("us_per_tensor", taken / tensors)}));
      std::fprintf(stderr, "a call: %s\n", rows.back().c_str());
    }
  }
  wait_until_idle(capture);
  rows.push_back(object({field("early_commits", static_cast<double>(capture.report().early_commits)),
                         field("records", static_cast<double>(drain.taken()))}));
  return array(rows);
}

}  // namespace tdcore::bench
