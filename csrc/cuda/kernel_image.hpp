// kernel_image.hpp: the kernels as this build carries them: machine code where nvcc was there, and their
// source.
//
// The source is kernels.cuh with what it includes in one text (cmake/Kernels.cmake makes it); nvcc compiled
// the same text to the fatbin.
// Threads: constant data.
#pragma once

#include <string_view>

namespace tdcore::cuda {

/// A fatbin for the driver: machine code for some architectures, PTX for the rest. Empty without nvcc.
std::string_view kernel_fatbin() noexcept;

/// "sm_80 sm_90 sm_100 compute_75"; empty without nvcc.
std::string_view kernel_fatbin_architectures() noexcept;

std::string_view kernel_source() noexcept;

}  // namespace tdcore::cuda
