// dlpack.hpp: the part of the DLPack 1.x binary interface that reading a tensor needs.
//
// Layouts and codes only, as published by the DLPack project (dmlc/dlpack) and as exported by
// PyTorch 2.13 under Tensor.__dlpack_c_exchange_api__. These types do not own or free memory.
// The major version is the ABI: if it differs from kMajorVersion, no other field may be read.
// Threads: plain data.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tdcore::dlpack {

inline constexpr std::uint32_t kMajorVersion = 1;
inline constexpr std::uint32_t kMinorVersion = 3;

// Names of the capsules: the exchange table, a tensor, a tensor that was consumed.
inline constexpr const char* kExchangeCapsule = "dlpack_exchange_api";
inline constexpr const char* kVersionedCapsule = "dltensor_versioned";
inline constexpr const char* kVersionedUsed = "used_dltensor_versioned";
inline constexpr const char* kLegacyCapsule = "dltensor";
inline constexpr const char* kLegacyUsed = "used_dltensor";

// Device types whose memory the host may read immediately, and the type that tdcore's devices read. All other
// types are rejected, including managed memory, because a running kernel may be writing it.
enum DeviceType : std::int32_t {
  kHost = 1,
  kCuda = 2,
  kCudaPinnedHost = 3,
  kRocmPinnedHost = 11,
};

constexpr bool is_host(std::int32_t device_type) noexcept {
  return device_type == kHost || device_type == kCudaPinnedHost || device_type == kRocmPinnedHost;
}

enum TypeCode : std::uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBfloat = 4,
  kComplex = 5,
  kBool = 6,
  kFloat8E4M3FN = 10,
  kFloat8E5M2 = 12,
};

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};

struct Device {
  std::int32_t type;
  std::int32_t id;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null means C contiguous (before 1.2)
  std::uint64_t byte_offset;
};

struct ManagedLegacy {  // capsule "dltensor"
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedLegacy*);  // may be null
};

struct Managed {  // capsule "dltensor_versioned"; the fields up to `flags` are the same in every major
                  // version
  Version version;
  void* context;
  void (*deleter)(Managed*);  // may be null
  std::uint64_t flags;
  Tensor tensor;
};

struct ExchangeHeader {
  Version version;
  ExchangeHeader* previous;  // a table for an older major version, or null
};

/// A framework's function table, found on the type of its tensors. Valid until the process ends.
/// Each function returns 0, or -1 with a Python exception set. The GIL must be held.
struct ExchangeApi {
  ExchangeHeader header;
  void* allocate;                                 // not used here
  void* managed_from;                             // not used here
  void* managed_to;                               // not used here
  int (*tensor_from)(void* object, Tensor* out);  // borrows: valid while the object lives. May be null.
  int (*current_work_stream)(std::int32_t device_type, std::int32_t device_id, void** stream);
};

static_assert(sizeof(DataType) == 4 && sizeof(Device) == 8 && sizeof(Version) == 8);
static_assert(sizeof(void*) != 8 ||
              (sizeof(Tensor) == 48 && sizeof(ManagedLegacy) == 64 && sizeof(Managed) == 80));
static_assert(sizeof(void*) != 8 || (sizeof(ExchangeHeader) == 16 && sizeof(ExchangeApi) == 56));
static_assert(sizeof(void*) != 8 || (offsetof(Tensor, shape) == 24 && offsetof(Tensor, byte_offset) == 40));

}  // namespace tdcore::dlpack
