// CudaDevice on a fake driver: tests of everything except the device itself.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "check.hpp"
#include "cuda/cuda_device.hpp"
#include "cuda/kernel_image.hpp"
#include "fakes.hpp"

using namespace tdcore;
using namespace tdcore::testing;

namespace {

constexpr std::uint64_t kPiece = 1 << 20;

cuda::CudaDeviceOptions options() {
  cuda::CudaDeviceOptions options;
  // This file does not test NVRTC: without nvcc the fake driver accepts any image.
  options.kernels.choice =
      cuda::kernel_fatbin().empty() ? cuda::KernelChoice::kNvrtc : cuda::KernelChoice::kFatbin;
  options.kernels.folders = {TDCORE_FAKE_PACKAGES};
  options.pin_chunk_bytes = kPiece;
  options.probe_ms = 200;
  return options;
}

struct Bench {
  FakeCuda& fake = fresh_cuda();
  std::unique_ptr<const cuda::Driver> driver = fake_driver();
  std::string reason;
  std::unique_ptr<cuda::CudaDevice> device;

  cuda::CudaDevice& open() {
    device = cuda::CudaDevice::open(*driver, 0, options(), reason);
    if (device == nullptr) throw std::runtime_error(reason);
    fake.launches.clear();  // of the set-up
    return *device;
  }
};

/// Whole pages, freed by the destructor.
class Pages {
 public:
  explicit Pages(std::uint64_t bytes) : bytes_(bytes) {
    at_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  ~Pages() { (void)::munmap(at_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  void* at(std::uint64_t offset = 0) const { return static_cast<char*>(at_) + offset; }

 private:
  void* at_;
  std::uint64_t bytes_;
};

void a_device_says_what_it_is_and_gives_everything_back() {
  Bench bench;
  const DeviceInfo& info = bench.open().info();
  REQUIRE(info.name == "Fake H100 MIG 1g.10gb");
  REQUIRE(info.multiprocessors == 4);
  REQUIRE(info.memory_bytes == std::uint64_t{8} << 30);
  REQUIRE(info.best_commit_mode == CommitMode::kStreamWrite);
  REQUIRE(info.commit_mode_reason.empty());
  REQUIRE(bench.device->architecture() == 90);
  REQUIRE(bench.device->errors().empty());
  REQUIRE(bench.device->allocate(100) != nullptr);
  bench.device.reset();
  REQUIRE(bench.fake.live == 0);
  REQUIRE(bench.fake.contexts.empty());
  REQUIRE(bench.fake.capture_mode == 0);
}

void the_threads_own_context_is_back_after_each_call() {
  Bench bench;
  cuda::CudaDevice& device = bench.open();
  void* const other = reinterpret_cast<void*>(0x0d);
  bench.fake.contexts = {other};
  void* const memory = device.allocate(64);
  REQUIRE(device.fill_zero(0, memory, 64));
  REQUIRE(bench.fake.contexts == std::vector<void*>{other});
  REQUIRE(bench.fake.not_current == 0);
  bench.fake.contexts.clear();
}

void calls_that_might_wait_break_no_graph_capture_of_another_thread() {
  Bench bench;
  cuda::CudaDevice& device = bench.open();
  const EventHandle event = device.make_event();
  REQUIRE(device.allocate(64) != nullptr && device.allocate_host(64) != nullptr);
  const Pages pages(kPiece);
  REQUIRE(device.pin(pages.at(), kPiece));
  REQUIRE(device.query_event(event) == EventState::kDone);
  bench.device.reset();
  REQUIRE(bench.fake.strict == 0);
}

void a_stream_is_not_of_the_trainings_priority() {
  Bench bench;
  REQUIRE(bench.open().make_stream() != 0);
  REQUIRE(bench.fake.priorities.back() == -5);
}

void memory_is_pinned_in_pieces_and_unpinned() {
  Bench bench;
  const Pages pages(3 * kPiece);
  REQUIRE(bench.open().pin(pages.at(), 2 * kPiece + 4096));
  REQUIRE(bench.fake.registered.size() == 3);
  REQUIRE(bench.fake.registered.rbegin()->second == 4096);
  REQUIRE(bench.device->device_address(pages.at(5)) == pages.at(5));
  bench.device.reset();
  REQUIRE(bench.fake.registered.empty());
}

void a_piece_that_cannot_be_pinned_undoes_the_others() {
  Bench bench;
  const Pages pages(3 * kPiece);
  cuda::CudaDevice& device = bench.open();
  bench.fake.fail_at["cuMemHostRegister"] = 3;
  // The fourth call pins the memory in one piece.
  REQUIRE(device.pin(pages.at(), 3 * kPiece));
  REQUIRE(bench.fake.registered.size() == 1);
  REQUIRE(bench.fake.calls["cuMemHostUnregister"] == 2);
}

void memory_that_cannot_be_pinned_at_all_is_left_alone() {
  Bench bench;
  const Pages pages(3 * kPiece);
  cuda::CudaDevice& device = bench.open();
  bench.fake.failing["cuMemHostRegister"] = 2;
  REQUIRE(!device.pin(pages.at(), 3 * kPiece));
  REQUIRE(bench.fake.registered.empty());
  REQUIRE(device.errors() == "cuMemHostRegister: CUDA_ERROR_OUT_OF_MEMORY (2)");
  bench.fake.failing.clear();
  REQUIRE(device.pin(pages.at(), kPiece));  // the device is not off
}

void pieces_that_the_device_sees_apart_become_one() {
  Bench bench;
  const Pages pages(2 * kPiece);
  bench.fake.moved_by = 0;
  cuda::CudaDevice& device = bench.open();
  bench.fake.moved_by = std::uintptr_t{1} << 40;
  REQUIRE(device.pin(pages.at(), 2 * kPiece));
  REQUIRE(bench.fake.registered.size() == 1);
  const auto seen = reinterpret_cast<std::uintptr_t>(device.device_address(pages.at(kPiece)));
  REQUIRE(seen == reinterpret_cast<std::uintptr_t>(pages.at(kPiece)) + (std::uintptr_t{1} << 40));
  int elsewhere = 0;
  REQUIRE(device.device_address(&elsewhere) == &elsewhere);
}

void no_memory_is_null_and_turns_nothing_off() {
  Bench bench;
  cuda::CudaDevice& device = bench.open();
  bench.fake.failing = {
      {"cuMemAlloc", 2}, {"cuMemHostAlloc", 2}, {"cuStreamCreateWithPriority", 2}, {"cuEventCreate", 2}};
  REQUIRE(device.allocate(64) == nullptr);
  REQUIRE(device.allocate_host(64) == nullptr);
  REQUIRE(device.make_stream() == 0);
  REQUIRE(device.make_event() == 0);
  REQUIRE(device.errors().starts_with("cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)"));
  bench.fake.failing.clear();
  REQUIRE(device.make_event() != 0);
}

void copies_and_words_go_where_they_are_told() {
  Bench bench;
  cuda::CudaDevice& device = bench.open();
  auto* const host = static_cast<std::uint64_t*>(device.allocate_host(64));
  void* const memory = device.allocate(64);
  host[0] = 7;
  REQUIRE(device.copy_to_device(2, memory, host, 8));
  host[0] = 0;
  REQUIRE(device.copy_to_host(2, host, memory, 8));
  REQUIRE(host[0] == 7);
  REQUIRE(device.fill_zero(0, memory, 8) && device.copy_to_host(0, host, memory, 8) && host[0] == 0);
  REQUIRE(device.write_word(1, host, 11, CommitMode::kStreamWrite) && host[0] == 11);
  REQUIRE(device.write_word(1, host, 12, CommitMode::kCommitKernel) && host[0] == 12);
  REQUIRE(!device.write_word(1, host, 13, CommitMode::kPoll) && host[0] == 12);
}

void a_launch_has_no_more_blocks_than_tiles_nor_than_run_at_once() {
  Bench bench;
  cuda::CudaDevice& device = bench.open();
  device::Launch launch{};
  launch.commit_value = 99;
  launch.tiles = 3;
  REQUIRE(device.launch(5, Kernel::kStats, launch));
  launch.tiles = 1000;
  REQUIRE(device.launch(2, Kernel::kPack, launch));
  const auto& launches = bench.fake.launches;
  REQUIRE(launches.size() == 3);
  REQUIRE(launches[0].kernel == "tdcore_stats" && launches[0].blocks == 3 && launches[0].stream == 5);
  REQUIRE(launches[1].kernel == "tdcore_pack" && launches[1].blocks == 4 * 8 && launches[1].stream == 2);
  device::Launch seen;
  std::memcpy(&seen, launches[0].launch.data(), sizeof seen);
  REQUIRE(seen.commit_value == 99 && seen.first_tile == 0 && seen.tiles == 3);
}

void a_long_launch_is_divided_so_that_other_streams_can_start_work() {
  Bench bench;
  device::Launch launch{};
  launch.tiles = 1100;
  REQUIRE(bench.open().launch(2, Kernel::kStats, launch));
  std::uint64_t end = 0;
  for (const FakeLaunch& part : bench.fake.launches) {
    device::Launch seen;
    std::memcpy(&seen, part.launch.data(), sizeof seen);
    REQUIRE(seen.first_tile == end && seen.tiles > end && seen.tiles - end <= 16 * 4 * 8);
    REQUIRE(part.blocks == std::min<std::uint64_t>(seen.tiles - end, 4 * 8));
    end = seen.tiles;
  }
  REQUIRE(bench.fake.launches.size() == 3 && end == 1100);
}

void a_capture_is_seen_also_where_the_default_stream_cannot_be_asked() {
  Bench bench;
  cuda::CudaDevice& device = bench.open();
  REQUIRE(!device.is_capturing(2));
  for (const int status : {1, 2}) {
    bench.fake.capture_status = status;
    REQUIRE(device.is_capturing(2));
  }
  bench.fake.capture_status = 0;
  bench.fake.failing["cuStreamIsCapturing"] = 906;
  REQUIRE(device.is_capturing(0));
  REQUIRE(device.errors().empty());
}

void events_are_done_pending_or_failed() {
  Bench bench;
  cuda::CudaDevice& device = bench.open();
  const EventHandle event = device.make_event();
  REQUIRE(device.record_event(event, 2) && device.wait_event(3, event));
  REQUIRE(device.query_event(event) == EventState::kDone);
  bench.fake.events_pending = true;
  REQUIRE(device.query_event(event) == EventState::kPending);
  bench.fake.failing["cuEventQuery"] = 700;
  REQUIRE(device.query_event(event) == EventState::kFailed);
}

void a_lost_context_turns_the_device_off() {
  Bench bench;
  cuda::CudaDevice& device = bench.open();
  void* const memory = device.allocate(64);
  bench.fake.failing["cuMemsetD8Async"] = 700;
  REQUIRE(!device.fill_zero(0, memory, 64));
  bench.fake.failing.clear();
  const int before = bench.fake.calls["cuMemsetD8Async"];
  REQUIRE(!device.fill_zero(0, memory, 64));
  REQUIRE(bench.fake.calls["cuMemsetD8Async"] == before);
  REQUIRE(device.errors() == "cuMemsetD8Async: CUDA_ERROR_OF_THE_FAKE (700)");
}

void an_error_that_passes_leaves_the_device_on() {
  Bench bench;
  cuda::CudaDevice& device = bench.open();
  void* const memory = device.allocate(64);
  bench.fake.failing["cuMemsetD8Async"] = 1;
  REQUIRE(!device.fill_zero(0, memory, 64));
  bench.fake.failing.clear();
  REQUIRE(device.fill_zero(0, memory, 64));
}

void a_device_that_cannot_write_words_commits_by_kernel() {
  Bench bench;
  bench.fake.stream_writes = false;
  const DeviceInfo& info = bench.open().info();
  REQUIRE(info.best_commit_mode == CommitMode::kCommitKernel);
  REQUIRE(info.commit_mode_reason == "the device cannot write 64-bit words in stream order");
  REQUIRE(!bench.device->write_word(0, static_cast<std::uint64_t*>(bench.device->allocate_host(8)), 1,
                                    CommitMode::kStreamWrite));
}

void a_word_that_does_not_arrive_takes_the_next_commit_mode() {
  Bench bench;
  bench.fake.drop_stream_writes = true;
  REQUIRE(bench.open().info().best_commit_mode == CommitMode::kCommitKernel);
  REQUIRE(bench.device->info().commit_mode_reason == "a write in stream order is not visible to the host");
  bench.device.reset();
  bench.fake.drop_commit_kernel = true;
  REQUIRE(bench.open().info().best_commit_mode == CommitMode::kPoll);
  REQUIRE(bench.device->info().commit_mode_reason ==
          "a write in stream order is not visible to the host; a commit kernel is not visible to the host");
}

void a_word_that_arrives_before_its_bytes_takes_the_next_commit_mode() {
  Bench bench;
  bench.fake.late_copies = true;
  REQUIRE(bench.open().info().best_commit_mode == CommitMode::kPoll);
  REQUIRE(bench.device->info().commit_mode_reason.starts_with(
      "a write in stream order is visible before the copied bytes"));
}

void a_refused_write_takes_the_next_commit_mode() {
  Bench bench;
  bench.fake.failing["cuStreamWriteValue64"] = 801;
  REQUIRE(bench.open().info().best_commit_mode == CommitMode::kCommitKernel);
  REQUIRE(bench.device->info().commit_mode_reason == "a write in stream order is rejected by the device");
}

void a_busy_device_polls() {
  Bench bench;
  bench.fake.drop_stream_writes = bench.fake.drop_commit_kernel = bench.fake.events_pending = true;
  REQUIRE(bench.open().info().best_commit_mode == CommitMode::kPoll);
  REQUIRE(bench.device->info().commit_mode_reason.find("the device is busy") != std::string::npos);
}

void what_cannot_be_opened_says_why_and_leaves_nothing() {
  const struct {
    const char* call;
    int result;
    const char* said;
  } cases[] = {{"cuInit", 999, "CUDA cannot start"},
               {"cuDeviceGet", 101, "there is no device 0"},
               {"cuDevicePrimaryCtxRetain", 46, "another process may hold the device alone"},
               {"cuModuleLoadDataEx", 2, "the driver does not take the kernels"}};
  for (const auto& [call, result, said] : cases) {
    Bench bench;
    bench.fake.failing[call] = result;
    REQUIRE(cuda::CudaDevice::open(*bench.driver, 0, options(), bench.reason) == nullptr);
    REQUIRE(bench.reason.find(said) != std::string::npos);
    REQUIRE(bench.fake.live == 0 && bench.fake.contexts.empty() && bench.fake.capture_mode == 0);
  }
  Bench bench;
  REQUIRE(cuda::CudaDevice::open(*bench.driver, 1, options(), bench.reason) == nullptr);
  REQUIRE(bench.reason.find("CUDA_VISIBLE_DEVICES") != std::string::npos);
}

void no_kernel_is_loaded_during_a_capture_by_a_driver_that_loads_at_the_first_launch() {
  Bench bench;
  cuda::CudaDevice& device = bench.open();
  REQUIRE(bench.driver->function_load == nullptr);
  bench.fake.capture_status = 1;
  std::uint64_t gate = 0, armed = 0;
  device::Launch launch{};
  launch.gate = &gate;
  REQUIRE(device.open_gate(5, &gate, &armed) && device.launch(5, Kernel::kStats, launch));
  bench.fake.capture_status = 0;
  REQUIRE(bench.fake.loads_in_capture == 0 && bench.fake.loaded.size() == 5 && device.errors().empty());
}

void the_latest_error_is_kept_next_to_the_first_one() {
  Bench bench;
  cuda::CudaDevice& device = bench.open();
  std::uint64_t word = 0;
  bench.fake.failing["cuMemsetD8Async"] = 1;
  REQUIRE(!device.fill_zero(5, &word, 8));
  const std::string first = device.errors();
  for (const int result : {2, 1}) {
    bench.fake.failing["cuEventRecord"] = result;
    REQUIRE(!device.record_event(1, 5));
  }
  const std::string both = device.errors();
  REQUIRE(first.starts_with("cuMemsetD8Async: ") && both.starts_with(first + "; latest: cuEventRecord: "));
  REQUIRE(both.ends_with("(1)"));
}

void a_captured_stream_gets_only_kernels_and_its_graph_is_watched() {
  Bench bench;
  cuda::CudaDevice& device = bench.open();
  int ended = 0;
  const auto end = [](void* data) { ++*static_cast<int*>(data); };
  REQUIRE(device.capture_id(5) == 0 && !device.watch_graph(5, end, &ended));  // not captured
  bench.fake.capture_status = 1;
  bench.fake.capture_id = 77;
  REQUIRE(device.capture_id(5) == 77 && device.watch_graph(5, end, &ended) && ended == 0);
  REQUIRE(bench.fake.graph_data == &ended);
  bench.fake.graph_ended(bench.fake.graph_data);
  REQUIRE(ended == 1);
  std::uint64_t gate = 0, armed = 9;
  bench.fake.launches.clear();
  REQUIRE(device.open_gate(5, &gate, &armed) && gate == 9);
  REQUIRE(device.set_word(5, &armed, 10) && armed == 10);
  device::Collection collection{};
  collection.count = 7;  // a block for each record
  REQUIRE(device.collect(5, collection));
  REQUIRE(bench.fake.launches.size() == 3 && bench.fake.launches[2].kernel == "tdcore_collect");
  for (const FakeLaunch& launch : bench.fake.launches)
    REQUIRE(launch.blocks == (launch.kernel == "tdcore_collect" ? 7 : 1) && launch.stream == 5);
  REQUIRE(bench.fake.launches[0].threads == 1 && bench.fake.launches[2].threads == device::kThreads);
  REQUIRE(bench.fake.strict == 0 && bench.fake.not_current == 0);
  bench.fake.capture_status = 2;  // invalidated
  REQUIRE(device.capture_id(5) == 0);
  bench.fake.capture_status = 0;
  bench.fake.failing["cuStreamGetCaptureInfo"] = 906;  // the default stream, while another one is captured
  REQUIRE(device.capture_id(0) == 0 && device.errors().empty());
}

void a_driver_without_graph_functions_captures_no_graphs() {
  Bench bench;
  cuda::Driver without = *bench.driver;
  without.stream_get_capture_info = nullptr;
  without.user_object_create = nullptr;
  bench.fake.capture_status = 1;
  bench.fake.capture_id = 77;
  const auto device = cuda::CudaDevice::open(without, 0, options(), bench.reason);
  REQUIRE(device != nullptr && device->capture_id(5) == 0);
  REQUIRE(!device->watch_graph(5, [](void*) {}, nullptr) && device->errors().empty());
}

void a_child_gives_nothing_back() {
  Bench bench;
  bench.open();
  const pid_t child = ::fork();
  if (child == 0) {
    const int live = bench.fake.live;
    bench.device.reset();
    ::_exit(bench.fake.live == live ? 0 : 1);
  }
  int status = 1;
  REQUIRE(::waitpid(child, &status, 0) == child && status == 0);
}

}  // namespace

int main() {
#define CASE(name) it(#name, name)
  CASE(a_device_says_what_it_is_and_gives_everything_back);
  CASE(the_threads_own_context_is_back_after_each_call);
  CASE(calls_that_might_wait_break_no_graph_capture_of_another_thread);
  CASE(a_stream_is_not_of_the_trainings_priority);
  CASE(memory_is_pinned_in_pieces_and_unpinned);
  CASE(a_piece_that_cannot_be_pinned_undoes_the_others);
  CASE(memory_that_cannot_be_pinned_at_all_is_left_alone);
  CASE(pieces_that_the_device_sees_apart_become_one);
  CASE(no_memory_is_null_and_turns_nothing_off);
  CASE(copies_and_words_go_where_they_are_told);
  CASE(a_launch_has_no_more_blocks_than_tiles_nor_than_run_at_once);
  CASE(a_long_launch_is_divided_so_that_other_streams_can_start_work);
  CASE(a_capture_is_seen_also_where_the_default_stream_cannot_be_asked);
  CASE(events_are_done_pending_or_failed);
  CASE(a_lost_context_turns_the_device_off);
  CASE(an_error_that_passes_leaves_the_device_on);
  CASE(a_device_that_cannot_write_words_commits_by_kernel);
  CASE(a_word_that_does_not_arrive_takes_the_next_commit_mode);
  CASE(a_word_that_arrives_before_its_bytes_takes_the_next_commit_mode);
  CASE(a_refused_write_takes_the_next_commit_mode);
  CASE(a_busy_device_polls);
  CASE(what_cannot_be_opened_says_why_and_leaves_nothing);
  CASE(a_captured_stream_gets_only_kernels_and_its_graph_is_watched);
  CASE(no_kernel_is_loaded_during_a_capture_by_a_driver_that_loads_at_the_first_launch);
  CASE(the_latest_error_is_kept_next_to_the_first_one);
  CASE(a_driver_without_graph_functions_captures_no_graphs);
  CASE(a_child_gives_nothing_back);
#undef CASE
  return result();
}
