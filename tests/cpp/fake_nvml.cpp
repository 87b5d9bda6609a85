// fake_nvml.cpp: replaces the library of the NVIDIA driver that reports on GPUs (NVML), and has two made-up
// GPUs. GPUs.
//
// GPU 0 supports all that tdcore reads; GPU 1 supports utilisation and memory only. The counters of traffic
// grow by 1,000 with each reading. Signatures are those of nvml.h; tests/flusher/test_system_gpus.py loads
// this library.

#include <cstring>

namespace {

enum Status { kSuccess = 0, kNotSupported = 3 };
struct Device {
  int index;
};
struct Utilization {
  unsigned gpu, memory;
};
struct Memory {
  unsigned long long total, free, used;
};
union Value {
  double d;
  unsigned ui;
  unsigned long long ull;
};
struct FieldValue {
  unsigned field, scope;
  long long timestamp, latency;
  int type, status;
  Value value;
};
constexpr int kUnsignedLongLong = 3;

Device devices[2] = {{0}, {1}};
unsigned long long traffic = 0;

Status only_first(const Device* device, unsigned* result, unsigned value) {
  if (device->index != 0) return kNotSupported;
  *result = value;
  return kSuccess;
}

}  // namespace

extern "C" {

Status nvmlInit_v2() { return kSuccess; }
Status nvmlInitWithFlags(unsigned) { return kSuccess; }
Status nvmlShutdown() { return kSuccess; }
const char* nvmlErrorString(Status) { return "made-up error"; }
Status nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return kSuccess;
}
Status nvmlDeviceGetHandleByIndex_v2(unsigned index, Device** device) {
  *device = &devices[index];
  return kSuccess;
}
Status nvmlDeviceGetUUID(const Device* device, char* text, unsigned) {
  if (device->index != 0) return kNotSupported;
  std::strcpy(text, "GPU-made-up");
  return kSuccess;
}
Status nvmlDeviceGetUtilizationRates(const Device* device, Utilization* result) {
  *result = {device->index == 0 ? 87U : 12U, 40U};
  return kSuccess;
}
Status nvmlDeviceGetMemoryInfo(const Device*, Memory* result) {
  *result = {80ULL << 30, 20ULL << 30, 60ULL << 30};
  return kSuccess;
}
Status nvmlDeviceGetPowerUsage(const Device* device, unsigned* result) {
  return only_first(device, result, 412500);
}
Status nvmlDeviceGetTemperature(const Device* device, int, unsigned* result) {
  return only_first(device, result, 71);
}
Status nvmlDeviceGetClockInfo(const Device* device, int kind, unsigned* result) {
  return only_first(device, result, kind == 1 ? 1755 : 2619);
}
Status nvmlDeviceGetCurrentClocksThrottleReasons(const Device* device, unsigned long long* result) {
  if (device->index != 0) return kNotSupported;
  *result = 0x44;  // power cap, hardware thermal slowdown
  return kSuccess;
}
Status nvmlDeviceGetFieldValues(const Device* device, int count, FieldValue* values) {
  if (device->index != 0) return kNotSupported;
  traffic += 1000;
  for (int i = 0; i < count; ++i) {
    values[i].status = kSuccess;
    values[i].type = kUnsignedLongLong;
    values[i].value.ull = traffic;
  }
  return kSuccess;
}

}  // extern "C"
