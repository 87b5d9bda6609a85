// The trainer's side of the ring: class Ring. bindings/capture.cpp adds capture(), and bindings/device.cpp
// adds the methods for devices.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/memory_limits.hpp"
#include "bindings/counters.hpp"
#include "bindings/errors.hpp"
#include "cuda/cuda_device.hpp"
#include "device/device_ring.hpp"
#include "ring/ring.hpp"

namespace py = pybind11;

namespace tdcore {
namespace {

constexpr std::size_t kMostNameChars = 65536;  // MAX_NAME_CHARS in tdcore/format/layout.py
constexpr double kMaxTimeoutSeconds = 1e9;     // 30 years; keeps the conversion to nanoseconds in range

FullPolicy policy_from(const std::string& name) {
  if (name == "block") return FullPolicy::kBlock;
  if (name == "drop") return FullPolicy::kDrop;
  if (name == "degrade") return FullPolicy::kDegrade;
  throw py::value_error("policy must be 'block', 'drop' or 'degrade', got '" + name + "'");
}

const char* policy_name(FullPolicy policy) {
  switch (policy) {
    case FullPolicy::kBlock:
      return "block";
    case FullPolicy::kDrop:
      return "drop";
    case FullPolicy::kDegrade:
      return "degrade";
  }
  return "?";
}

std::shared_ptr<DeviceRing> make_ring(std::uint64_t data_bytes, std::uint64_t slots,
                                      std::uint64_t names_bytes, const std::string& policy,
                                      double block_timeout_seconds, int threads, std::uint32_t device_lanes,
                                      std::uint64_t device_lane_bytes, std::uint64_t device_lane_slots,
                                      std::uint64_t device_arena_bytes, bool step_times,
                                      std::uint64_t limit_bytes, std::uint64_t device_lane_limit) {
  if (!std::isfinite(block_timeout_seconds) || block_timeout_seconds < 0 ||
      block_timeout_seconds > kMaxTimeoutSeconds) {
    throw py::value_error("block_timeout_seconds must be from 0 to 1e9, got " +
                          std::to_string(block_timeout_seconds));
  }
  RingConfig config;
  config.data_bytes = data_bytes;
  config.slots = slots;
  config.names_bytes = names_bytes;
  config.policy = policy_from(policy);
  config.block_timeout = std::chrono::nanoseconds(static_cast<std::int64_t>(block_timeout_seconds * 1e9));
  config.threads = threads;
  config.device_lanes = device_lanes;
  config.device_lane_bytes = device_lane_bytes;
  config.device_lane_slots = device_lane_slots;
  config.device_arena_bytes = device_arena_bytes;
  config.step_times = step_times;
  config.limit_bytes = limit_bytes;
  config.device_lane_limit = device_lane_limit;
  try {
    const py::gil_scoped_release unlocked;  // allocation takes about 0.3 s per GiB
    return std::make_shared<DeviceRing>(config, &cuda::open_cuda_device);
  } catch (const std::system_error& error) {
    throw_os_error(error);
  }
}

py::tuple load(const DeviceRing& self) {
  const Ring& ring = self.ring();
  const Counters counters = ring.counters();
  const Progress now = ring.progress();
  std::uint64_t refused = 0;
  for (const DropReason reason : {DropReason::kRingFull, DropReason::kDegraded, DropReason::kArenaFull})
    refused += counters.drops[static_cast<std::size_t>(reason)].bytes;
  const std::uint64_t refused_tensors =
      counters.drops[static_cast<std::size_t>(DropReason::kRingFull)].tensors;
  return py::make_tuple(counters.payload_bytes, refused, now.bytes, counters.tensors, refused_tensors,
                        now.rows, ring.waited_ns(), now.busy_ns, now.uploads.durable_bytes,
                        now.uploads.accepted_bytes, now.uploads.upload_ns);
}

/// Whether UTF-8 text has more than kMostNameChars characters.
bool is_too_long(std::string_view name) noexcept {
  if (name.size() <= kMostNameChars) return false;
  const auto begins = [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; };
  return static_cast<std::size_t>(std::count_if(name.begin(), name.end(), begins)) > kMostNameChars;
}

std::int64_t intern(DeviceRing& self, std::string_view name, std::uint32_t kind, std::string_view origin,
                    std::string_view shard) {
  if (is_too_long(name)) return kUnfitNameId;
  const std::optional<std::uint32_t> id = self.ring().intern(name, kind, origin, shard);
  return id ? static_cast<std::int64_t>(*id) : -1;
}

bool put_document(DeviceRing& self, std::string_view key, const py::bytes& data) {
  const std::string_view bytes = data;
  const py::gil_scoped_release unlocked;
  return self.ring().put_document(key, bytes);
}

py::object stop_request(const DeviceRing& self) {
  const std::optional<std::string> text = self.ring().stop_request();
  if (!text) return py::none();
  return decode_utf8(*text);
}

py::object take_request(const DeviceRing& self) {
  const std::optional<std::string> text = self.ring().take_request();
  if (!text) return py::none();
  return decode_utf8(*text);
}

py::dict progress(const DeviceRing& self) {
  const Progress now = self.ring().progress();
  py::dict result;
  result["epoch"] = now.epoch;
  result["heartbeat_ns"] = now.heartbeat_ns;
  result["records"] = now.records;
  result["bytes"] = now.bytes;
  result["rows"] = now.rows;
  result["busy_ns"] = now.busy_ns;
  result["last_step"] = now.last_step;
  result["pending_records"] = now.pending_records;
  result["pending_bytes"] = now.pending_bytes;
  result["errors"] = now.errors;
  result["error"] = now.error.empty() ? py::object(py::none()) : decode_utf8(now.error);
  return result;
}

/// Wraps a method of Ring as a method of the bound class.
template <typename Result, typename... Arguments>
auto of_ring(Result (Ring::*method)(Arguments...) const) {
  return [method](const DeviceRing& self, Arguments... arguments) -> Result {
    return (self.ring().*method)(arguments...);
  };
}
template <typename Result, typename... Arguments>
auto of_ring(Result (Ring::*method)(Arguments...)) {
  return [method](DeviceRing& self, Arguments... arguments) -> Result {
    return (self.ring().*method)(arguments...);
  };
}

constexpr const char* kRingDoc =
    R"(The trainer's side of the ring. A flusher reads the ring through its file descriptors.

Threads: any. In a forked child and after close() every method does nothing.

Args:
    data_bytes: Maximum size of the data, a power of two from 64 KiB to 64 GiB. The ring begins with 1 to
        4 MiB and allocates more memory when a record finds no room.
    slots: Maximum number of records, a power of two from 16 to 2**20.
    names_bytes: Maximum size of the table of names, a power of two from 4 KiB to 1 GiB. Its memory is
        allocated when names are added.
    policy: Behavior of a capture if there is no room: 'block' (wait up to block_timeout_seconds, then drop),
        'drop', or 'degrade' (store statistics without payloads).
    block_timeout_seconds: Maximum time that a capture waits for room.
    threads: Number of threads for the work of a large capture, including the caller. The other threads sleep
        between captures.
    device_lanes: Number of additional rings, 0 to 8, for records that accelerators write, one per device. The
        memory of such a ring is allocated when its device is first used.
    device_lane_bytes: Size of the data of each additional ring.
    device_lane_slots: Number of records of each additional ring.
    device_arena_bytes: Size of the buffer in each device's memory for payloads that are being copied.
    step_times: Whether the memory has a queue for the rows of StepTimer.
    limit_bytes: Size at which growth ends until raise_limit(), a power of two; 0: data_bytes.
    device_lane_limit: The same for each additional ring, until its memory is allocated.

Raises:
    ValueError: A size is invalid.
    OSError: There is not enough memory.)";

constexpr const char* kPretendDoc =
    R"(For tests: limit the available memory that rings of this process find, in bytes. None: no limit.)";

}  // namespace

void bind_ring(py::module_& module) {
  module.def("available_memory_bytes", &available_memory_bytes,
             "Estimate of the memory that this process may still allocate, in bytes: the free memory of the "
             "machine, limited by the cgroups of the process.");
  module.def(
      "_pretend_available_memory",
      [](std::optional<std::uint64_t> bytes) { pretend_available_memory(bytes.value_or(~std::uint64_t{0})); },
      py::arg("bytes"), kPretendDoc);
  py::class_<DeviceRing, std::shared_ptr<DeviceRing>>(module, "Ring", kRingDoc)
      .def(py::init(&make_ring), py::kw_only(), py::arg("data_bytes"), py::arg("slots"),
           py::arg("names_bytes") = RingConfig{}.names_bytes, py::arg("policy") = "block",
           py::arg("block_timeout_seconds") = 30.0, py::arg("threads") = 1,
           py::arg("device_lanes") = RingConfig{}.device_lanes,
           py::arg("device_lane_bytes") = RingConfig{}.device_lane_bytes,
           py::arg("device_lane_slots") = RingConfig{}.device_lane_slots,
           py::arg("device_arena_bytes") = RingConfig{}.device_arena_bytes, py::arg("step_times") = false,
           py::arg("limit_bytes") = 0, py::arg("device_lane_limit") = 0)
      .def_property_readonly("fd", of_ring(&Ring::fd),
                             "Descriptor of the memfd, for the flusher; -1 after close().")
      .def_property_readonly(
          "fds", of_ring(&Ring::fds),
          "Descriptors of the main ring and of its lanes, for Consumer; empty after close().")
      .def_property_readonly(
          "early_commits", of_ring(&Ring::early_commits),
          "Number of a device's records that were found committed before their values had arrived.")
      .def_property_readonly("usable", of_ring(&Ring::usable), "False in a forked child and after close().")
      .def_property_readonly("data_bytes", of_ring(&Ring::data_bytes), "Maximum size of the data in bytes.")
      .def_property_readonly("limit_bytes", of_ring(&Ring::limit_bytes),
                             "Size of the data in bytes at which growth ends at present.")
      .def("raise_limit", of_ring(&Ring::raise_limit), py::arg("bytes"),
           py::call_guard<py::gil_scoped_release>(),  // waits while another thread makes the ring larger
           "Let the ring grow to this size, rounded up to a power of two, and at most to data_bytes. Returns "
           "the size at which growth ends.")
      .def(
          "load", &load,
          "Totals for a comparison of two times, as a tuple of integers: bytes of payloads that were stored, "
          "that were dropped because there was no room, and that are durable; the same three numbers of "
          "tensors; nanoseconds that threads waited for room, and in which the sink had work; and the three "
          "numbers of Consumer.report(uploads).")
      .def_property_readonly("memory_bytes", of_ring(&Ring::memory_bytes),
                             "Bytes of shared memory that were allocated so far, including the rings of "
                             "devices; 0 after close().")
      .def("expect", of_ring(&Ring::expect), py::arg("bytes"),
           "Announce that records of this size in total will soon be in the ring at once. A thread allocates "
           "the memory, so that no capture has to. Returns immediately.")
      .def("growth_refusal", of_ring(&Ring::growth_refusal),
           "The reason why the ring could not become larger at the last attempt; \"\" if it could.")
      .def_property_readonly("slots", of_ring(&Ring::slots), "Maximum number of records in the ring.")
      .def_property_readonly("max_record_bytes", of_ring(&Ring::max_record_bytes),
                             "Maximum size of a record in bytes. Larger tensors are split into parts.")
      .def_property_readonly(
          "policy", [](const DeviceRing& self) { return policy_name(self.ring().policy()); },
          "Behavior of a capture if there is no room: 'block', 'drop' or 'degrade'.")
      .def("intern", &intern, py::arg("name"), py::arg("kind"), py::arg("origin") = "", py::arg("shard") = "",
           "Return the id of a name in the shared table; the same arguments return the same id. Returns -1 "
           "if the table cannot grow any more, and 4294967294 for a name of more than 65,536 characters, "
           "whose tensors are counted and have no rows. The last part of a full table is reserved for names "
           "of losses, scalars, metrics and hyperparameters. shard: the tensor's place in a larger tensor, "
           "as text (tdcore/format/shard.py).")
      .def("put_document", &put_document, py::arg("key"), py::arg("data"),
           "Send a small file of the run. It replaces an earlier file with the same key. Returns False if "
           "the file does not fit. May wait for room, according to the policy.")
      .def(
          "counters", [](const DeviceRing& self) { return counters_dict(self.ring().counters()); },
          "Totals so far: captures, tensors, payload_bytes, capture_ns, and drops by reason, for reasons "
          "that occurred. After close(): the final totals.")
      .def("progress", &progress,
           "The last report of the flusher, and the records that it has not released yet. heartbeat_ns is a "
           "time of time.monotonic_ns().")
      .def("stop_request", &stop_request, "Text of a stop request from the flusher, or None.")
      .def("was_asked", of_ring(&Ring::was_asked),
           "Whether the flusher has posted a stop request, or a request that was not taken yet. Costs almost "
           "nothing.")
      .def("take_request", &take_request,
           "Return the text of the waiting request, once; None if no request waits.")
      .def("set_closing", of_ring(&Ring::set_closing),
           "Accept no further records. The flusher drains the ring and ends.")
      .def("prefault", of_ring(&Ring::start_prefault),
           "Start a thread that writes to every page of the ring, so that captures cause no page faults. "
           "Returns immediately.");
}

}  // namespace tdcore
