// counters.hpp: copies of the totals and of the consumer's state in the control page. Threads: any thread or
// process, at any time. Each number is exact, but the numbers are not from one instant.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "ring/control_page.hpp"

namespace tdcore {

struct Counters {
  struct Drop {
    std::uint64_t tensors = 0;
    std::uint64_t bytes = 0;
  };
  std::uint64_t captures = 0;
  std::uint64_t tensors = 0;        // number of kept tensors
  std::uint64_t payload_bytes = 0;  // size of kept payloads
  std::uint64_t capture_ns = 0;     // time spent in capture calls
  std::array<Drop, static_cast<std::size_t>(DropReason::kCount)> drops{};
};

struct UploadTotals {
  std::uint64_t durable_bytes = 0;   // of objects in the bucket or its spool; 0 for a disk
  std::uint64_t accepted_bytes = 0;  // of objects that the bucket has accepted
  std::uint64_t upload_ns = 0;       // time of all uploads, added up
};

struct Progress {
  std::uint64_t epoch = 0;         // consumers attached so far
  std::uint64_t heartbeat_ns = 0;  // CLOCK_MONOTONIC; 0 before the first report
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;
  std::uint64_t rows = 0;
  std::uint64_t busy_ns = 0;  // time in which the consumer's sink had work
  UploadTotals uploads;
  std::int64_t last_step = 0;
  std::uint64_t pending_records = 0;  // reserved and not yet released
  std::uint64_t pending_bytes = 0;
  std::uint64_t errors = 0;
  std::string error;  // the last error; empty if there is no error
};

Counters read_counters(const ControlPage& control) noexcept;
Progress read_progress(const ControlPage& control);
void add_drop(ControlPage& control, DropReason reason, std::uint64_t tensors, std::uint64_t bytes) noexcept;
void write_error_text(ErrorText& text,
                      const std::string& message) noexcept;  // consumer only; cut at kErrorTextBytes
std::string read_error_text(const ErrorText& text);

}  // namespace tdcore
