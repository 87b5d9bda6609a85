// tdcore's declarations of the driver's functions compared with the header of the toolkit, if it is
// installed.
#include <type_traits>

#include "cuda/driver.hpp"

#if __has_include(<cuda.h>)
#include <cuda.h>

namespace {

/// Whether two types are passed in the same registers as the same bits.
template <class Ours, class Theirs>
inline constexpr bool kSameWay =
    sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>;

template <class Ours, class Theirs>
struct SameShape : std::false_type {};
template <class... Ours, class... Theirs>
  requires(sizeof...(Ours) == sizeof...(Theirs))
struct SameShape<int (*)(Ours...), CUresult (*)(Theirs...)>
    : std::bool_constant<(kSameWay<Ours, Theirs> && ...)> {};

#define TDCORE_SAME_SHAPE(member, symbol, parameters)                                                     \
  static_assert(SameShape<decltype(tdcore::cuda::Driver::member), std::decay_t<decltype(symbol)>>::value, \
                #symbol " is declared otherwise in cuda.h");
TDCORE_CUDA_ENTRY_POINTS(TDCORE_SAME_SHAPE)
TDCORE_SAME_SHAPE(stream_write_value64, cuStreamWriteValue64_v2, )
TDCORE_SAME_SHAPE(function_load, cuFuncLoad, )

using namespace tdcore::cuda;
static_assert(kDeinitialized == CUDA_ERROR_DEINITIALIZED);
static_assert(kNoDevice == CUDA_ERROR_NO_DEVICE && kNotReady == CUDA_ERROR_NOT_READY);
static_assert(kFirstCaptureError == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
static_assert(kLastCaptureError == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
static_assert(kHostPortable == CU_MEMHOSTALLOC_PORTABLE && kHostPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(kHostDeviceMap == CU_MEMHOSTALLOC_DEVICEMAP && kHostDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(kStreamNonBlocking == CU_STREAM_NON_BLOCKING && kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kCaptureModeRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED && CU_STREAM_CAPTURE_STATUS_NONE == 0);
static_assert(kCaptureActive == CU_STREAM_CAPTURE_STATUS_ACTIVE);
static_assert(kUserObjectNoDestructorSync == CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
static_assert(kGraphUserObjectMove == CU_GRAPH_USER_OBJECT_MOVE);
static_assert(kAttributeMultiprocessors == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(kAttributeMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(kAttributeMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(kAttributeStreamWrite64 == CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
static_assert(kAttributeMps == CU_DEVICE_ATTRIBUTE_MPS_ENABLED);
static_assert(CU_STREAM_WRITE_VALUE_DEFAULT == 0);

}  // namespace
#endif

int main() { return 0; }
