// gpu.cpp: the GPU benchmark: kernels, copies to the host, commits, cost of a capture call. Prints JSON.
//
//     gpu [--device cuda:0|host|early] [--parts probe,check,kernels,dma,soak,calls] [--quick] [--records N]
//
// --device host runs all parts on the simulated device. This shows that the benchmark works; it is not a
// measurement. Exit codes: 1 if a result is wrong (early commits are counted, and are not wrong), 2 if the
// device cannot be used. docs/benchmarks.md explains the output. Threads: one, and the consumers that parts
// start.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string_view>

#include "gpu_device.hpp"

namespace {

using namespace tdcore::bench;

struct Arguments {
  Options options;
  std::string parts = "probe,check,kernels,dma,soak,calls";
};

bool parse(int count, char** words, Arguments& arguments) {
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    if (word == "--quick") {
      arguments.options.quick = true;
      arguments.options.seconds = 0.002;
      arguments.options.rounds = 2;
      arguments.options.records = std::min<std::uint64_t>(arguments.options.records, 2000);
    } else if (i + 1 < count && word == "--device") {
      arguments.options.device = words[++i];
    } else if (i + 1 < count && word == "--parts") {
      arguments.parts = words[++i];
    } else if (i + 1 < count && word == "--records") {
      arguments.options.records = std::stoull(words[++i]);
    } else {
      return false;
    }
  }
  return arguments.options.records > 0;
}

bool wants(const Arguments& arguments, std::string_view part) {
  std::string_view rest = arguments.parts;
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    if (rest.substr(0, comma) == part) return true;
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
  }
  return false;
}

std::string about(tdcore::Device& device) {
  const tdcore::DeviceInfo& info = device.info();
  return object({field("name", info.name), field("kernels", info.kernels),
                 field("multiprocessors", info.multiprocessors),
                 field("memory_bytes", static_cast<double>(info.memory_bytes)),
                 field("best_rung", std::string(tdcore::commit_mode_name(info.best_commit_mode))),
                 field("rung_reason", info.commit_mode_reason)});
}

bool says_wrong(const std::string& text) {
  for (const char* word : {"\"different\": ", "\"corrupt\": ", "\"stuck\": "}) {
    for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
      if (text[at + std::strlen(word)] != '0') return true;
    }
  }
  return false;
}

}  // namespace

int main(int count, char** words) {
  Arguments arguments;
  if (!parse(count, words, arguments)) {
    std::fprintf(
        stderr,
        "usage: gpu [--device cuda:0|host|early] [--parts probe,check,kernels,dma,soak,calls] [--quick] "
        "[--records N]\n");
    return 2;
  }
  const Options& options = arguments.options;
  std::unique_ptr<tdcore::Device> device;
  try {
    device = open_device(options.device);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s cannot be used: %s\n", options.device.c_str(), error.what());
    return 2;
  }
  std::string text = "{\"device\": ";
  text.append(about(*device));
  const auto part = [&](const char* name, auto&& run) {
    if (!wants(arguments, name)) return;
    text.append(",\n\"").append(name).append("\": ").append(run());
  };
  try {
    part("probe", [&] { return commit_probes(*device); });
    part("check", [&] { return check_kernels(*device); });
    part("kernels", [&] { return kernel_rates(*device, options); });
    part("dma", [&] { return dma_rates(*device, options); });
    part("soak", [&] { return commit_soak(*device, options); });
    part("calls", [&] { return call_costs(options); });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::printf("%s}\n", text.c_str());
  return says_wrong(text) ? 1 : 0;
}
