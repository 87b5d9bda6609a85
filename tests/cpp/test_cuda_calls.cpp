// Calls of the driver per capture, counted with the fake driver: a gate for the cost of a capture on the
// training's stream. docs/gpu-kernels.md has the table.
#include <map>
#include <string>
#include <vector>

#include "cuda/cuda_device.hpp"
#include "cuda/kernel_image.hpp"
#include "device_rig.hpp"
#include "fakes.hpp"
#include "stats_reference.hpp"

namespace {

using namespace tdcore;
using namespace tdcore::testing;

using Calls = std::map<std::string, int>;

/// A capture through the driver, whose device is host memory and whose kernels do nothing.
struct Bench {
  explicit Bench(bool inline_tables) : main(with_lane(config(8 * kMiB, 256))) {
    std::string reason;
    cuda::CudaDeviceOptions options;
    options.kernels.choice =
        cuda::kernel_fatbin().empty() ? cuda::KernelChoice::kNvrtc : cuda::KernelChoice::kFatbin;
    options.kernels.folders = {TDCORE_FAKE_PACKAGES};
    auto device = cuda::CudaDevice::open(*driver, 0, options, reason);
    if (device == nullptr) throw std::runtime_error(reason);
    DeviceCaptureConfig memory = small_memory();
    memory.inline_tables = inline_tables;
    captures = std::make_unique<DeviceCapture>(std::move(device), main.lanes()[0], main, memory);
    fake.contexts = {reinterpret_cast<void*>(0xc0)};  // as in a thread of the training
    (void)calls({Tensor(Dtype::kF32, {3}).request()});
  }
  ~Bench() {
    captures.reset();
    fake.contexts.clear();
  }
  /// Calls of one capture, without those that read the state of the thread.
  Calls calls(const std::vector<TensorRequest>& requests) {
    const Calls before = fake.calls;
    REQUIRE(captures->capture(requests, {.step = 1, .mode_step = 1, .mode = 1, .call = 0}, 7).not_kept == 0);
    Calls made;
    for (const auto& [name, count] : fake.calls) {
      const auto found = before.find(name);
      const int more = count - (found == before.end() ? 0 : found->second);
      if (more > 0) made[name] = more;
    }
    return made;
  }

  FakeCuda& fake = fresh_cuda();
  std::unique_ptr<const cuda::Driver> driver = fake_driver();
  Ring main;
  std::unique_ptr<DeviceCapture> captures;
};

void check_calls(Calls made, Calls want, const char* what) {
  made.erase("cuEventQuery");  // of earlier captures
  want["cuStreamIsCapturing"] = 1;
  std::string text = what;
  for (const auto& [name, count] : made) text += " " + name + "=" + std::to_string(count);
  check(made == want, text);
}

void small_captures() {
  Bench bench(true);
  const Tensor output(Dtype::kF32, {64, 64});
  const Tensor large(Dtype::kF32, {64, 512});
  const Calls one{{"cuLaunchKernel", 1}, {"cuEventRecord", 1}};
  check_calls(bench.calls({output.request(kWantStats)}), one, "statistics");
  check_calls(bench.calls(std::vector<TensorRequest>(32, output.request(kWantStats))), one, "32 statistics");
  check_calls(bench.calls({large.request(kWantStats)}), one, "statistics of several tiles");
  check_calls(bench.calls({output.request(kAll)}), one, "small values");
  const FakeLaunch& last = bench.fake.launches.back();
  REQUIRE(last.kernel == "tdcore_stats" && last.stream == 7 && last.blocks == 2);
  device::InlineLaunch launch;
  std::memcpy(&launch, last.launch.data(), sizeof launch);
  REQUIRE(launch.launch.items == nullptr && launch.launch.count == 1 && launch.packs == 1);
  REQUIRE(launch.launch.commit_word != nullptr && launch.guards[0] != nullptr);
  check_calls(bench.calls({large.request(kAll)}),
              {{"cuLaunchKernel", 1},
               {"cuEventRecord", 2},
               {"cuStreamWaitEvent", 1},
               {"cuMemcpyDtoHAsync", 1},
               {"cuStreamWriteValue64", 1}},
              "values of 128 KiB");
}

void uploaded_tables() {
  Bench bench(false);
  const Tensor output(Dtype::kF32, {64, 64});
  check_calls(bench.calls({output.request(kWantStats)}),
              {{"cuMemcpyHtoDAsync", 1}, {"cuLaunchKernel", 1}, {"cuEventRecord", 1}}, "statistics");
  check_calls(bench.calls({output.request(kAll)}),
              {{"cuMemcpyHtoDAsync", 1},
               {"cuLaunchKernel", 2},
               {"cuEventRecord", 2},
               {"cuStreamWaitEvent", 1},
               {"cuMemcpyDtoHAsync", 1},
               {"cuStreamWriteValue64", 1}},
              "values");
}

void graph_capture() {
  Bench bench(true);
  const Tensor output(Dtype::kF32, {64});
  bench.fake.capture_status = 1;
  const Calls before = bench.fake.calls;
  REQUIRE(bench.captures->capture(std::vector<TensorRequest>{output.request()}, {}, 7).not_kept == 1);
  for (const char* const name : {"cuLaunchKernel", "cuEventRecord", "cuMemcpyHtoDAsync", "cuMemsetD8Async"}) {
    const auto found = before.find(name);
    REQUIRE(bench.fake.calls[name] == (found == before.end() ? 0 : found->second));
  }
  bench.fake.capture_status = 0;
}

/// Records one capture call per name into a graph.
void record_calls(Bench& bench, const Tensor& output, std::uint32_t calls) {
  bench.fake.capture_status = 1;
  bench.fake.capture_id = 5;
  for (std::uint32_t name = 0; name < calls; ++name) {
    const TensorRequest request = output.request(kWantStats, name);
    REQUIRE(bench.captures->capture({&request, 1}, {}, 7).not_kept == 0);
  }
  bench.fake.capture_status = 0;
}

void graph_collection() {
  for (const std::uint32_t calls : {1U, 256U, 8192U, 8193U}) {  // a launch collects 32 records of 256 tensors
    Bench bench(true);
    const Tensor output(Dtype::kF32, {4});
    record_calls(bench, output, calls);
    const Calls before = bench.fake.calls;
    const auto more = [&](const char* name) { return bench.fake.calls[name] - before.at(name); };
    REQUIRE(bench.captures->arm_graphs(7) && more("cuLaunchKernel") == 1);
    REQUIRE(bench.captures->collect_graphs({}, 7).not_kept == 0);
    const int launches = calls > 8192 ? 2 : 1;
    REQUIRE(more("cuLaunchKernel") == 2 + launches && more("cuEventRecord") == launches);
    REQUIRE(more("cuMemcpyHtoDAsync") == 0 && more("cuMemsetD8Async") == 0);
    REQUIRE(bench.captures->report().error.empty());
    bench.fake.graph_ended(bench.fake.graph_data);
  }
}

}  // namespace

int main() {
  it("a hooked output is one launch and one event record", small_captures);
  it("an uploaded table is one copy more, and values need a launch of their own", uploaded_tables);
  it("a stream that is captured into a graph gets no call that enqueues", graph_capture);
  it("a collection is one launch and one event per 8,192 tensors of graphs", graph_collection);
  return result();
}
