// The flusher's side: class Consumer and class Drained.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "bindings/counters.hpp"
#include "bindings/errors.hpp"
#include "ring/consumer/consumer.hpp"
#include "ring/consumer/drained_batches.hpp"
#include "segment/segment.hpp"

namespace py = pybind11;

namespace tdcore {

void bind_tables(py::module_& module);  // bindings/tables.cpp

namespace {

/// A consumer with the names that were read so far. The mutex is for Python threads that share a consumer,
/// because its calls run without the GIL.
struct SharedConsumer {
  explicit SharedConsumer(std::vector<std::shared_ptr<RingMemory>> lanes) : consumer(std::move(lanes)) {}

  std::mutex mutex;  // guards everything below
  Consumer consumer;
  NameCursor cursor;
  std::vector<Name> names;
};

/// A drain, its file plan, and the memory to which both refer. One thread at a time.
struct SharedDrained {
  std::shared_ptr<SharedConsumer> owner;
  DrainedBatches drained;
  Segment segment;
  bool released = false;
};

/// A read-only buffer that keeps its owner alive.
struct OwnedBytes {
  std::shared_ptr<const SharedDrained> owner;
  const void* data;
  std::uint64_t bytes;
};

py::object view_of(std::shared_ptr<const SharedDrained> owner, const void* data, std::uint64_t bytes) {
  static const std::byte nothing{};
  const py::object holder = py::cast(OwnedBytes{std::move(owner), bytes == 0 ? &nothing : data, bytes});
  PyObject* const view = PyMemoryView_FromObject(holder.ptr());
  if (view == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(view);
}

py::buffer_info buffer_of(OwnedBytes& bytes) {
  return py::buffer_info(const_cast<void*>(bytes.data), 1, py::format_descriptor<unsigned char>::format(), 1,
                         {static_cast<py::ssize_t>(bytes.bytes)}, {py::ssize_t{1}}, true);
}

// ---- Consumer

std::shared_ptr<SharedConsumer> attach(const std::variant<int, std::vector<int>>& fds) {
  const int* const one = std::get_if<int>(&fds);
  const std::vector<int> all = one != nullptr ? std::vector<int>{*one} : std::get<std::vector<int>>(fds);
  try {
    std::vector<std::shared_ptr<RingMemory>> lanes;
    for (const int fd : all) lanes.push_back(RingMemory::attach(fd));
    return std::make_shared<SharedConsumer>(std::move(lanes));
  } catch (const std::system_error& error) {
    throw_os_error(error);
  }
}

std::shared_ptr<SharedDrained> drain_records(const std::shared_ptr<SharedConsumer>& self,
                                             std::uint64_t max_bytes, std::uint64_t max_records,
                                             bool producer_dead) {
  auto result = std::make_shared<SharedDrained>();
  result->owner = self;
  const py::gil_scoped_release unlocked;
  const std::lock_guard lock(self->mutex);
  result->drained = drain(self->consumer, max_bytes, max_records, producer_dead);
  return result;
}

void release_records(SharedConsumer& self, SharedDrained& drained) {
  if (drained.owner.get() != &self) throw py::value_error("this Drained came from another Consumer");
  if (drained.released) throw py::value_error("this Drained has already been released");
  const std::lock_guard lock(self.mutex);
  release(self.consumer, drained.drained);
  drained.released = true;
}

py::list names_from(SharedConsumer& self, std::uint64_t start) {
  const std::lock_guard lock(self.mutex);
  for (Name& name : self.consumer.names(self.cursor)) self.names.push_back(std::move(name));
  py::list result;
  for (std::uint64_t id = start; id < self.names.size(); ++id) {
    const Name& name = self.names[id];
    result.append(
        py::make_tuple(decode_utf8(name.name), name.kind, decode_utf8(name.origin), decode_utf8(name.shard)));
  }
  return result;
}

std::uint64_t head_ticket(SharedConsumer& self) {
  const std::lock_guard lock(self.mutex);
  return self.consumer.released().ticket;
}

void count_drop(SharedConsumer& self, unsigned reason, std::uint64_t tensors, std::uint64_t bytes) {
  if (reason == 0 || reason >= static_cast<unsigned>(DropReason::kCount)) {
    throw py::value_error("reason must be a key of DROP_REASONS (1 to " +
                          std::to_string(static_cast<unsigned>(DropReason::kCount) - 1) + "), got " +
                          std::to_string(reason));
  }
  self.consumer.count_drop(static_cast<DropReason>(reason), tensors, bytes);
}

void report(SharedConsumer& self, std::uint64_t records, std::uint64_t bytes, std::uint64_t rows,
            std::int64_t last_step, const std::optional<std::string>& error, std::uint64_t busy_ns,
            const std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>& uploads) {
  const auto [durable_bytes, accepted_bytes, upload_ns] = uploads;
  const std::lock_guard lock(self.mutex);
  self.consumer.report(records, bytes, rows, last_step, error ? &*error : nullptr, busy_ns,
                       {durable_bytes, accepted_bytes, upload_ns});
}

void request_stop(SharedConsumer& self, const std::string& text) {
  if (text.empty() || text.size() > kControlTextBytes) {
    throw py::value_error("a stop request must be 1 to " + std::to_string(kControlTextBytes) +
                          " bytes of text, got " + std::to_string(text.size()));
  }
  const std::lock_guard lock(self.mutex);
  (void)self.consumer.request_stop(text);  // false only in a forked child, where the call has no effect
}

bool try_post_request(SharedConsumer& self, const std::string& text) {
  if (text.empty() || text.size() > kControlTextBytes) {
    throw py::value_error("a request must be 1 to " + std::to_string(kControlTextBytes) +
                          " bytes of text, got " + std::to_string(text.size()));
  }
  const std::lock_guard lock(self.mutex);
  return self.consumer.try_post_request(text);
}

py::bytes step_times(SharedConsumer& self, std::size_t most) {
  const std::lock_guard lock(self.mutex);
  const std::vector<StepTimeRow> rows = self.consumer.step_times(most);
  return py::bytes(reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(StepTimeRow));
}

void release_step_times(SharedConsumer& self, std::uint64_t count) {
  const std::lock_guard lock(self.mutex);
  self.consumer.release_step_times(count);
}

// ---- Drained

/// The names of the rows with payload, by id. Copied before the GIL is released.
std::vector<std::string> needed_names(const DrainedBatches& drained, const py::sequence& names) {
  const std::size_t known = py::len(names);
  std::vector<std::string> result;
  for (const IndexRow& row : drained.rows) {
    const std::size_t id = row.entry.name;
    if (row.location == kNoPayload || id >= known) continue;
    if (id >= result.size()) result.resize(id + 1);
    if (result[id].empty()) result[id] = py::cast<std::string>(names[id]);
  }
  return result;
}

std::uint64_t plan(SharedDrained& self, const py::sequence& names, const std::string& run_id) {
  if (self.released)
    throw py::value_error(
        "plan_segment() must be called before release(): the space of the payloads has been released");
  if (!self.owner->consumer.usable())
    throw std::runtime_error(
        "plan_segment() cannot be called in a forked child: the ring belongs to the parent");
  const std::vector<std::string> texts = needed_names(self.drained, names);
  const py::gil_scoped_release unlocked;
  self.segment =
      plan_segment(self.drained.rows, self.drained.batches, self.owner->consumer.data(), texts, run_id);
  return self.segment.file_bytes;
}

py::list segment_parts(const std::shared_ptr<SharedDrained>& self) {
  if (self->released)
    throw py::value_error(
        "segment_parts() must be called before release(): the space of the payloads has been released");
  py::list parts;
  for (const SegmentPiece& piece : self->segment.pieces())
    parts.append(view_of(self, piece.data, piece.bytes));
  return parts;
}

py::list documents(const SharedDrained& self) {
  py::list result;
  for (const auto& [key, bytes] : self.drained.documents)
    result.append(py::make_tuple(decode_utf8(key), py::bytes(bytes)));
  return result;
}

py::object rows(const std::shared_ptr<SharedDrained>& self) {
  return view_of(self, self->drained.rows.data(), self->drained.rows.size() * sizeof(IndexRow));
}

constexpr const char* kConsumerDoc =
    R"(The flusher's side of a ring: reads its records in order and releases their space.

A ring has one consumer at a time. A new consumer continues at the first record that was not released. Threads may
share a consumer. In a forked child every method does nothing.

Args:
    fds: Ring.fds, or the descriptor of a ring without device lanes. The descriptors are duplicated, so the caller
        may close its own.

Raises:
    ValueError: A descriptor is not a ring, or is a ring of another build.
    OSError: The ring cannot be mapped.)";

constexpr const char* kDrainDoc =
    R"(Take committed records. Their payloads stay in the ring until release().

Args:
    max_bytes: Maximum size of the records in total, in bytes. A single larger record is taken alone.
    max_records: Maximum number of records. At least one record is taken if there is one.
    producer_dead: Pass True only if the trainer's process has ended. Its unfinished records are then skipped and
        counted as torn.)";

constexpr const char* kReportDoc =
    R"(Update the heartbeat and the totals of Ring.progress().

Args:
    records: Number of records since the last report.
    bytes: Number of bytes since the last report.
    rows: Number of rows since the last report.
    last_step: Highest step so far. The largest number of all reports is kept.
    error: Text of an error, which is counted; Ring.progress() has the last text (its first 1024 bytes). An empty
        text means that the error is over.
    busy_ns: Time since the last report in which the sink had work, in nanoseconds.
    uploads: Of a bucket, since the last report: bytes that became durable (in the bucket or the spool), bytes that
        the bucket accepted, and nanoseconds of all uploads, added up.)";

constexpr const char* kPlanDoc =
    R"(Plan a safetensors file of the payloads, and set segment_offset and crc32c of `rows`.

Releases the GIL while it computes checksums.

Args:
    names: Names by id. A row whose id is not in the list is named '?<id>'.
    run_id: Id of the run, for the metadata of the file.

Returns:
    The size of the file in bytes; 0 without payload.)";

}  // namespace

void bind_consumer(py::module_& module) {
  bind_tables(module);

  py::class_<OwnedBytes>(module, "_Bytes", py::buffer_protocol()).def_buffer(&buffer_of);

  py::class_<SharedDrained, std::shared_ptr<SharedDrained>>(
      module, "Drained", "The records of one Consumer.drain(). One thread at a time.")
      .def_property_readonly(
          "first_ticket", [](const SharedDrained& self) { return self.drained.first.ticket; },
          "Ticket of the first record.")
      .def_property_readonly(
          "end_ticket", [](const SharedDrained& self) { return self.drained.end.ticket; },
          "Ticket after the last record.")
      .def_property_readonly(
          "records", [](const SharedDrained& self) { return self.drained.records; },
          "Number of batches and documents.")
      .def_property_readonly(
          "torn", [](const SharedDrained& self) { return self.drained.torn; },
          "Number of records that were unfinished or corrupt.")
      .def_property_readonly(
          "payload_bytes", [](const SharedDrained& self) { return self.drained.payload_bytes; },
          "Size of all payloads in bytes.")
      .def_property_readonly(
          "whole_step", [](const SharedDrained& self) { return self.drained.whole_step; },
          "The highest step that a marker among these records marks as complete; None without a marker.")
      .def_property_readonly("rows", &rows,
                             "One ROW_DTYPE struct per entry, in ticket order, as a read-only buffer.")
      .def_property_readonly("documents", &documents, "Pairs of key and bytes, in ticket order.")
      .def("plan_segment", &plan, py::arg("names"), py::arg("run_id") = "", kPlanDoc)
      .def("segment_parts", &segment_parts,
           "The planned file as buffers, in file order. Buffers of large payloads are in the ring: use them "
           "before release().");

  py::class_<SharedConsumer, std::shared_ptr<SharedConsumer>>(module, "Consumer", kConsumerDoc)
      .def(py::init(&attach), py::arg("fds"))
      .def("drain", &drain_records, py::arg("max_bytes"), py::arg("max_records"),
           py::arg("producer_dead") = false, kDrainDoc)
      .def("release", &release_records, py::arg("drained"),
           "Release the space of a drain. The reads are final then. Raises ValueError if the drain is "
           "already released, and RuntimeError if an earlier drain is not released.")
      .def("names", &names_from, py::arg("start"),
           "Tuples (name, kind, origin, shard) of all ids from `start` on.")
      .def_property_readonly(
          "closing", [](const SharedConsumer& self) { return self.consumer.closing(); },
          "Whether the trainer accepts no further records.")
      .def_property_readonly(
          "epoch", [](const SharedConsumer& self) { return self.consumer.epoch(); },
          "Number of this consumer among all consumers of the ring, from 1.")
      .def_property_readonly("head_ticket", &head_ticket,
                             "Number of records released so far, by all consumers.")
      .def_property_readonly(
          "pending_records", [](const SharedConsumer& self) { return self.consumer.pending_records(); },
          "Reserved, not released.")
      .def_property_readonly(
          "pending_bytes", [](const SharedConsumer& self) { return self.consumer.pending_bytes(); },
          "Reserved, not released.")
      .def_property_readonly(
          "data_bytes", [](const SharedConsumer& self) { return self.consumer.data_bytes(); },
          "Data bytes to which the ring may grow, or its current size if there is no more memory; the least "
          "of all lanes.")
      .def_property_readonly(
          "slots", [](const SharedConsumer& self) { return self.consumer.slots(); },
          "Maximum number of records; the least of all lanes.")
      .def_property_readonly(
          "fill", [](const SharedConsumer& self) { return self.consumer.fill(); },
          "Used share of the fullest lane's bytes or slots, whichever is larger, from 0 to 1.")
      .def_property_readonly(
          "early_commits", [](const SharedConsumer& self) { return self.consumer.early_commits(); },
          "Number of a device's records that were found committed before their values had arrived.")
      .def(
          "counters", [](const SharedConsumer& self) { return counters_dict(self.consumer.counters()); },
          "The same as Ring.counters().")
      .def("count_drop", &count_drop, py::arg("reason"), py::arg("tensors"), py::arg("bytes"),
           "Count tensors that were not stored. reason: a key of DROP_REASONS.")
      .def("report", &report, py::kw_only(), py::arg("records"), py::arg("bytes"), py::arg("rows"),
           py::arg("last_step"), py::arg("error") = py::none(), py::arg("busy_ns") = 0,
           py::arg("uploads") = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>(), kReportDoc)
      .def("request_stop", &request_stop, py::arg("text"),
           "Pass a stop request to the trainer. Later requests do not replace the first one.")
      .def(
          "try_post_request", &try_post_request, py::arg("text"),
          "Pass another request to the trainer. Returns False while the previous request has not been taken.")
      .def("step_times", &step_times, py::arg("most"),
           "The oldest rows in the queue of times of steps, at most `most`, as packed STEP_TIME_DTYPE "
           "structs. "
           "They stay in the queue until release_step_times().")
      .def("release_step_times", &release_step_times, py::arg("count"),
           "Remove the oldest rows from the queue of times of steps.")
      .def_property_readonly(
          "pending_step_times", [](const SharedConsumer& self) { return self.consumer.pending_step_times(); },
          "Number of rows in the queue of times of steps.")
      .def_property_readonly(
          "step_time_slots", [](const SharedConsumer& self) { return self.consumer.step_time_slots(); },
          "Maximum number of rows in this queue; 0 if the trainer measures no times.")
      .def_property_readonly(
          "requests_posted", [](const SharedConsumer& self) { return self.consumer.requests_posted(); },
          "Number of requests of try_post_request() so far, including requests of earlier consumers of the "
          "ring.");
}

}  // namespace tdcore
