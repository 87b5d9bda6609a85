// captured.hpp: a ring, tensors and capture calls for the tests that measure the cost of a call.
// Threads: none of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "capture/capture.hpp"
#include "ring/consumer/consumer.hpp"
#include "rings.hpp"

namespace tdcore::testing {

inline constexpr std::uint8_t kBoth = kWantPayload | kWantStats;

/// float32 tensors of one shape, each with its own memory, which are captured together.
class Tensors {
 public:
  /// `strides` in elements, or none: C contiguous. `values`: number of floats of each tensor.
  Tensors(std::size_t count, std::vector<std::int64_t> shape, std::vector<std::int64_t> strides,
          std::size_t values, std::uint8_t flags)
      : shape_(std::move(shape)), strides_(std::move(strides)), values_(count * values) {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      values_[i] = 0.37F * static_cast<float>(i % 101) - 11.0F;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const TensorView view{.data = values_.data() + i * values,
                            .shape = shape_.data(),
                            .strides = strides_.empty() ? nullptr : strides_.data(),
                            .ndim = static_cast<int>(shape_.size()),
                            .dtype = Dtype::kF32};
      requests_.push_back({.tensor = view,
                           .name = static_cast<std::uint32_t>(i),
                           .flags = flags,
                           .status = EntryStatus::kOk,
                           .reason = DropReason::kNone});
    }
  }
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;

  static Tensors contiguous(std::size_t count, std::int64_t elements, std::uint8_t flags = kBoth) {
    return {count, {elements}, {}, static_cast<std::size_t>(elements), flags};
  }

  CaptureResult capture_into(Ring& ring) const {
    return capture(ring, requests_, {.step = 1, .mode_step = 1, .mode = 1, .call = 0});
  }

 private:
  std::vector<std::int64_t> shape_, strides_;
  std::vector<float> values_;
  std::vector<TensorRequest> requests_;
};

/// Releases all records of the ring.
inline void drain(Consumer& consumer) {
  while (consumer.next(false)) {
  }
  release_all(consumer);
}

}  // namespace tdcore::testing
