// kernels.cuh: the device code, for nvcc and NVRTC alike; no header but the project's own.
//
// Compile with: --std=c++20, and without -ftz=true and --use_fast_math. The names and what a launch needs are
// in kernels.hpp. tests/cpp/gpu_emulation.hpp runs the same lines on the CPU.
#pragma once

#include "cuda/pack_kernel.cuh"
#include "cuda/stats_kernel.cuh"

/// Statistics of all items of a launch.
extern "C" __global__ void __launch_bounds__(tdcore::device::kThreads, 3)
    tdcore_stats(const __grid_constant__ tdcore::device::Launch launch) {
  TDCORE_SHARED(tdcore::device::Shared, shared);
  tdcore::device::stats_kernel(shared, launch);
}

/// The elements of all items of a launch to where they are packed.
extern "C" __global__ void __launch_bounds__(tdcore::device::kThreads, 3)
    tdcore_pack(const __grid_constant__ tdcore::device::Launch launch) {
  tdcore::device::pack_kernel(launch);
}

/// One thread: commits what came before it in its stream.
extern "C" __global__ void tdcore_commit(std::uint64_t* word, std::uint64_t value) {
  __threadfence_system();
  tdcore::device::store_release_system(word, value);
}
