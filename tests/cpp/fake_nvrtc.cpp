// A libnvrtc that compiles any source to the text "cubin of ...".
#include <cstring>

#include "fake_cuda.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using tdcore::testing::FakeNvrtc;

FakeNvrtc& fake() {
  static FakeNvrtc state;
  return state;
}

int give(const char* text, std::size_t* bytes) { return *bytes = std::strlen(text) + 1, 0; }
int give(const char* text, char* into) { return std::strcpy(into, text), 0; }

}  // namespace

EXPORT FakeNvrtc* tdcore_fake_nvrtc() { return &fake(); }
EXPORT int nvrtcVersion(int* major, int* minor) { return *major = 12, *minor = 4, 0; }
EXPORT int nvrtcGetNumSupportedArchs(int* count) { return *count = 4, 0; }
EXPORT int nvrtcGetSupportedArchs(int* known) {
  const int all[] = {75, 80, 86, 90};
  return std::memcpy(known, all, sizeof all), 0;
}
EXPORT int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*,
                              const char* const*) {
  return *program = &fake(), 0;
}
EXPORT int nvrtcCompileProgram(void*, int count, const char* const* options) {
  fake().option = count > 0 ? options[0] : "";
  ++fake().compiled;
  return fake().fails ? 6 : 0;
}
EXPORT int nvrtcDestroyProgram(void**) { return 0; }
EXPORT const char* nvrtcGetErrorString(int) { return "NVRTC_ERROR_OF_THE_FAKE"; }
EXPORT int nvrtcGetProgramLogSize(void*, std::size_t* bytes) { return give("kernels.cuh(1): error", bytes); }
EXPORT int nvrtcGetProgramLog(void*, char* log) { return give("kernels.cuh(1): error", log); }
EXPORT int nvrtcGetPTXSize(void*, std::size_t* bytes) { return give("ptx of the fake", bytes); }
EXPORT int nvrtcGetPTX(void*, char* ptx) { return give("ptx of the fake", ptx); }
EXPORT int nvrtcGetCUBINSize(void*, std::size_t* bytes) { return give("cubin of the fake", bytes); }
EXPORT int nvrtcGetCUBIN(void*, char* cubin) { return give("cubin of the fake", cubin); }
