// kernels.hpp: names and launch parameters of the kernels, for host code that compiles and launches them.
//
// Source: kernels.cuh and the files that it includes, all below csrc/ (joined by cmake/Kernels.cmake). nvcc
// and NVRTC need --std=c++20 and no other option; -ftz=true and --use_fast_math are compile errors. NVRTC
// needs no header of a toolkit.
//
// Grid: the number of resident blocks (cuOccupancyMaxActiveBlocksPerMultiprocessor times multiprocessors), at
// most Launch::tiles, and at least 1. The results have the same bits with any grid, and with any division of
// the tiles into launches. No dynamic shared memory.
// Parameters: tdcore_stats takes an InlineLaunch by value, tdcore_pack a Launch; tdcore_commit, one block of
// one thread, takes the device address of the word and a 64-bit value; tdcore_gate, one block of one thread,
// takes the addresses of the gate and of the armed word; tdcore_collect, one block, takes a Collection by
// value. Threads: constants.
#pragma once

#include "device/launch.hpp"

namespace tdcore::device {

inline constexpr const char* kStatsKernel = "tdcore_stats";
inline constexpr const char* kPackKernel = "tdcore_pack";
inline constexpr const char* kCommitKernel = "tdcore_commit";
inline constexpr const char* kGateKernel = "tdcore_gate";
inline constexpr const char* kCollectKernel = "tdcore_collect";
inline constexpr unsigned kStatsThreads = kThreads;
inline constexpr unsigned kPackThreads = kThreads;
inline constexpr unsigned kCollectThreads = kThreads;

}  // namespace tdcore::device
