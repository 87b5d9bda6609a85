// Captures and drains, so that a profiler can count the instructions of a capture call:
//
//   valgrind --tool=callgrind --toggle-collect='tdcore::capture(*' gate_capture TENSORS ELEMENTS FLAGS CALLS
//
// TENSORS float32 tensors of ELEMENTS elements; FLAGS as for a capture: 1 values, 2 statistics, 3 both.
// Without arguments the program captures a few tensors of each kind, to test itself.
// tests/gates/test_native_counts.py sets the upper limits.
#include <cstdio>
#include <cstdlib>

#include "captured.hpp"

namespace {

using namespace tdcore;
using namespace tdcore::testing;

int run(std::size_t tensors, std::int64_t elements, std::uint8_t flags, int calls) {
  Ring ring(config(std::uint64_t{16} << 20, 64));
  Consumer consumer(ring.memory());
  const Tensors list = Tensors::contiguous(tensors, elements, flags);
  for (int call = 0; call < calls; ++call) {
    if (list.capture_into(ring).kept != tensors) return 1;
    drain(consumer);
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 1) return run(100, 64, kBoth, 3) + run(3, 100'000, kWantPayload, 3) + run(0, 1, kBoth, 1);
  if (count != 5) {
    std::fprintf(stderr, "usage: gate_capture TENSORS ELEMENTS FLAGS CALLS\n");
    return 2;
  }
  const auto number = [&](int i) { return std::strtoll(arguments[i], nullptr, 10); };
  return run(static_cast<std::size_t>(number(1)), number(2), static_cast<std::uint8_t>(number(3)),
             static_cast<int>(number(4)));
}
