// kernels.cuh: the device code, for nvcc and NVRTC; it includes only headers of this project.
//
// Compile with --std=c++20, and without -ftz=true and --use_fast_math. kernels.hpp describes names and
// launches. tests/cpp/gpu_emulation.hpp runs the same code on the CPU.
#pragma once

#include "cuda/capture_kernel.cuh"
#include "cuda/graph_kernels.cuh"

/// Computes the statistics of all items of a launch. If the table is in the parameters, also packs elements.
extern "C" __global__ void __launch_bounds__(tdcore::device::kThreads, 3)
    tdcore_stats(const __grid_constant__ tdcore::device::InlineLaunch launch) {
  TDCORE_SHARED(tdcore::device::Shared, shared);
  tdcore::device::capture_kernel(shared, launch);
}

/// Packs the elements of all items of a launch.
extern "C" __global__ void __launch_bounds__(tdcore::device::kThreads, 4)
    tdcore_pack(const __grid_constant__ tdcore::device::Launch launch) {
  TDCORE_SHARED(tdcore::device::Box, box);
  tdcore::device::pack_kernel(&box, launch);
}

/// Commits the earlier work of its stream. One thread.
extern "C" __global__ void tdcore_commit(std::uint64_t* word, std::uint64_t value) {
  __threadfence_system();
  tdcore::device::store_release_system(word, value);
}

/// Copies the armed word to the gate of a graph. One thread.
extern "C" __global__ void tdcore_gate(std::uint64_t* gate, const std::uint64_t* armed) { *gate = *armed; }

/// Copies results of graphs' statistics kernels into records. One block for each record.
extern "C" __global__ void __launch_bounds__(tdcore::device::kThreads)
    tdcore_collect(const __grid_constant__ tdcore::device::Collection collection) {
  TDCORE_SHARED(tdcore::device::CollectionState, state);
  tdcore::device::collect_kernel(state, collection);
}
