// Search for the driver: a driver that can be used, and every reason why there is none.
#include "check.hpp"
#include "cuda/driver.hpp"
#include "fakes.hpp"

using namespace tdcore;
using namespace tdcore::testing;

namespace {

std::string reason_of(const char* path) {
  std::string reason;
  REQUIRE(cuda::open_driver(path, reason) == nullptr);
  return reason;
}

void a_driver_is_opened_without_starting_cuda() {
  FakeCuda& fake = fresh_cuda();
  const auto driver = fake_driver();
  REQUIRE(driver->version == 12040);
  REQUIRE(driver->path == TDCORE_FAKE_CUDA);
  REQUIRE(driver->stream_write_value64 != nullptr);
  REQUIRE(driver->function_load == nullptr);  // of 12.4 and newer; the fake has none
  REQUIRE(fake.calls.empty());
}

void no_driver_is_a_sentence() {
  const std::string reason = reason_of("/nowhere/libcuda.so.1");
  REQUIRE(reason.starts_with("no CUDA driver: /nowhere/libcuda.so.1"));
  REQUIRE(reason.find("install the NVIDIA driver") != std::string::npos);
}

void a_driver_without_an_entry_point_is_a_sentence_that_names_it() {
  // Any library that is not a driver.
  const std::string reason = reason_of(TDCORE_FAKE_NVRTC);
  REQUIRE(reason.find("has no cuGetErrorName") != std::string::npos);
}

void an_old_driver_is_a_sentence_with_both_versions() {
  fresh_cuda().version = 11080;
  const std::string reason = reason_of(TDCORE_FAKE_CUDA);
  REQUIRE(reason.find("is for CUDA 11.8") != std::string::npos);
  REQUIRE(reason.find("needs driver 525 (CUDA 12.0)") != std::string::npos);
}

void no_device_is_a_sentence() {
  FakeCuda& fake = fresh_cuda();
  const auto driver = fake_driver();
  std::string reason;
  REQUIRE(cuda::initialize(*driver, reason));
  fake.devices = 0;
  REQUIRE(!cuda::initialize(*driver, reason));
  REQUIRE(reason.find("CUDA_VISIBLE_DEVICES") != std::string::npos);
}

void errors_that_end_cuda_are_told_from_those_that_pass() {
  for (const int result : {4, 700, 709, 719, 999}) REQUIRE(cuda::is_sticky(result));
  for (const int result : {0, 1, 2, 600, 712, 901, 906}) REQUIRE(!cuda::is_sticky(result));
}

}  // namespace

int main() {
  it("a driver is opened without starting CUDA", a_driver_is_opened_without_starting_cuda);
  it("no driver is a sentence", no_driver_is_a_sentence);
  it("a driver without an entry point is a sentence that names it",
     a_driver_without_an_entry_point_is_a_sentence_that_names_it);
  it("an old driver is a sentence with both versions", an_old_driver_is_a_sentence_with_both_versions);
  it("no device is a sentence", no_device_is_a_sentence);
  it("errors that end CUDA are told from those that pass",
     errors_that_end_cuda_are_told_from_those_that_pass);
  return result();
}
