// The bytes of the images, included by the assembler, because a compiler needs seconds for a megabyte of
// numbers.
#include "cuda/kernel_image.hpp"

// Files are set by CMakeLists.txt. Sections of constants, hidden like everything else of the core.
#define TDCORE_EMBED(name, file)    \
  asm(".pushsection .rodata." #name \
      ",\"a\"\n"                    \
      ".hidden tdcore_" #name       \
      "\n"                          \
      ".global tdcore_" #name       \
      "\n"                          \
      ".hidden tdcore_" #name       \
      "_end\n"                      \
      ".global tdcore_" #name       \
      "_end\n"                      \
      ".balign 16\n"                \
      "tdcore_" #name               \
      ":\n"                         \
      ".incbin \"" file             \
      "\"\n"                        \
      "tdcore_" #name               \
      "_end:\n"                     \
      ".byte 0\n"                   \
      ".popsection\n");             \
  extern "C" __attribute__((visibility("hidden"))) const char tdcore_##name[], tdcore_##name##_end[]

TDCORE_EMBED(kernel_source, TDCORE_KERNEL_SOURCE);
#ifdef TDCORE_KERNEL_FATBIN
TDCORE_EMBED(kernel_fatbin, TDCORE_KERNEL_FATBIN);
#endif

namespace tdcore::cuda {

std::string_view kernel_source() noexcept {
  return {tdcore_kernel_source, static_cast<std::size_t>(tdcore_kernel_source_end - tdcore_kernel_source)};
}

#ifdef TDCORE_KERNEL_FATBIN
std::string_view kernel_fatbin() noexcept {
  return {tdcore_kernel_fatbin, static_cast<std::size_t>(tdcore_kernel_fatbin_end - tdcore_kernel_fatbin)};
}
std::string_view kernel_fatbin_architectures() noexcept { return TDCORE_KERNEL_ARCHITECTURES; }
#else
std::string_view kernel_fatbin() noexcept { return {}; }
std::string_view kernel_fatbin_architectures() noexcept { return {}; }
#endif

}  // namespace tdcore::cuda
