// kernels.hpp: what host code must know of the kernels to compile and launch them.
//
// Source: kernels.cuh and what it includes, all of it below csrc/ (cmake/Kernels.cmake joins it). nvcc and
// NVRTC need --std=c++20 and no other option; -ftz=true and --use_fast_math are refused. NVRTC needs no
// header of a toolkit. Grid: as many blocks as are resident (cuOccupancyMaxActiveBlocksPerMultiprocessor
// times multiprocessors), and no more than Launch::tiles, but at least 1. Any other grid gives the same bits.
// No dynamic shared memory. Parameters: tdcore_stats and tdcore_pack take a Launch by value; tdcore_commit,
// one block of one thread, takes the device address of the word and a 64-bit value. Threads: constants.
#pragma once

#include "device/launch.hpp"

namespace tdcore::device {

inline constexpr const char* kStatsKernel = "tdcore_stats";
inline constexpr const char* kPackKernel = "tdcore_pack";
inline constexpr const char* kCommitKernel = "tdcore_commit";
inline constexpr unsigned kStatsThreads = kThreads;
inline constexpr unsigned kPackThreads = kThreads;

}  // namespace tdcore::device
