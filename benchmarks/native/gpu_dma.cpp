// gpu_dma.cpp: copies to the host. Records with their commit words are copied into a pinned memory file, as
// into a ring, and compared with plain copies of the same sizes into memory that CUDA allocated.
#include <cstdio>

#include "gpu_device.hpp"

namespace tdcore::bench {

std::string dma_rates(Device& device, const Options& options) {
  const std::uint64_t most = options.quick ? std::uint64_t{2} << 20 : std::uint64_t{64} << 20;
  const StreamHandle stream = device.make_stream();
  auto* source = static_cast<std::byte*>(device_memory(device, most));
  auto* ring = static_cast<std::byte*>(pinned_mapping(device, 2 * most));
  void* plain = pinned_memory(device, most);
  auto* word = reinterpret_cast<std::uint64_t*>(ring + most);
  check(device, device.fill_zero(stream, source, most), "zeroing");
  const CommitMode commit_mode = device.info().best_commit_mode;
  std::vector<std::string> rows;
  for (std::uint64_t bytes = most; bytes >= most / 256; bytes /= 16) {
    std::vector<double> records, copies;
    for (int round = 0; round < options.rounds; ++round) {
      copies.push_back(seconds_of(device, stream, options.seconds, [&] {
        check(device, device.copy_to_host(stream, plain, source, bytes), "a copy");
      }));
      records.push_back(seconds_of(device, stream, options.seconds, [&] {
        check(device, device.copy_to_host(stream, ring, source, bytes), "a copy");
        if (commit_mode != CommitMode::kPoll) {
          check(device, device.write_word(stream, word, 1, commit_mode), "a commit");
        }
      }));
    }
    const double gigabytes = static_cast<double>(bytes) / 1e9;
    const double record = median(records), copy = median(copies);
    const std::string text =
        object({field("bytes", static_cast<double>(bytes)), field("records_gb_per_s", gigabytes / record),
                field("plain_gb_per_s", gigabytes / copy), field("of_plain", copy / record)});
    std::fprintf(stderr, "to the host: %s\n", text.c_str());
    rows.push_back(text);
  }
  return array(rows);
}

}  // namespace tdcore::bench
