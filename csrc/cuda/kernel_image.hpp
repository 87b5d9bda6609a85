// kernel_image.hpp: the kernels in this build: machine code, if the build had nvcc, and their source.
//
// The source is one text of kernels.cuh and the files that it includes, joined by cmake/Kernels.cmake; nvcc
// compiles the same text to the fatbin.
// Threads: constant data.
#pragma once

#include <string_view>

namespace tdcore::cuda {

/// A fatbin for the driver: machine code for some architectures, PTX for others. Empty without nvcc.
std::string_view kernel_fatbin() noexcept;

/// "sm_80 sm_86 sm_90 sm_100 sm_103 compute_75"; empty without nvcc.
std::string_view kernel_fatbin_architectures() noexcept;

std::string_view kernel_source() noexcept;

}  // namespace tdcore::cuda
