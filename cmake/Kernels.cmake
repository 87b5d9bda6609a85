# The GPU kernels: their source as one text for NVRTC, and a fatbin of the same text if nvcc works.
# Sets TDCORE_KERNEL_SOURCE, and with nvcc TDCORE_KERNEL_FATBIN and TDCORE_KERNEL_ARCHITECTURES.
#   TDCORE_CUDA=AUTO  use nvcc if it is found and works (default)
#   TDCORE_CUDA=ON    use nvcc; without it, configure fails
#   TDCORE_CUDA=OFF   do not use nvcc
#
# The name of a fatbin depends on all its inputs. TDCORE_KERNEL_CACHE (also as an environment variable) is a folder
# that several builds share, so that the kernels of one source are compiled once. Default: the folder of the build.
#
# CMake's CUDA language is not used: it requires a whole toolkit with its run-time library, and tdcore does not link
# this library.
set(TDCORE_CUDA "AUTO" CACHE STRING "Compile the GPU kernels with nvcc: AUTO, ON or OFF")
set_property(CACHE TDCORE_CUDA PROPERTY STRINGS AUTO ON OFF)
# Machine code also runs on later devices of a family (8.9 runs 8.6). 8.6 and 10.3 have few units for float64, so their
# code differs from the code of 8.0 and 10.0 (csrc/cuda/words.cuh). Other devices use the PTX, from which the driver
# makes machine code: 7.5 (T4), and devices newer than this list.
set(TDCORE_CUDA_ARCHITECTURES "80;86;90;100;103" CACHE STRING "Architectures that get machine code, ascending")
set(TDCORE_CUDA_PTX "75" CACHE STRING "The oldest architecture that is served, by PTX")
set(TDCORE_KERNEL_CACHE "$ENV{TDCORE_KERNEL_CACHE}" CACHE PATH "Folder of compiled kernels that builds share")

# Appends `file` to the variable `out`, with each local include replaced by its file, once. System includes stay.
function(tdcore_flatten file out)
  get_filename_component(file "${file}" ABSOLUTE)
  get_property(seen GLOBAL PROPERTY TDCORE_FLATTENED)
  if(file IN_LIST seen)
    return()
  endif()
  set_property(GLOBAL APPEND PROPERTY TDCORE_FLATTENED "${file}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  get_filename_component(folder "${file}" DIRECTORY)
  file(READ "${file}" rest)
  string(REPLACE "#pragma once\n" "\n" rest "${rest}")
  set(text "${${out}}")
  while(rest MATCHES "#include \"([^\"\n]+)\"")
    set(line "${CMAKE_MATCH_0}")
    set(name "${CMAKE_MATCH_1}")
    string(FIND "${rest}" "${line}" at)
    string(SUBSTRING "${rest}" 0 ${at} before)
    string(LENGTH "${line}" length)
    math(EXPR at "${at} + ${length}")
    string(SUBSTRING "${rest}" ${at} -1 rest)
    string(APPEND text "${before}")
    # Search as the compiler does: first in the folder of the file, then in csrc. Other includes stay in the text.
    if(EXISTS "${folder}/${name}")
      tdcore_flatten("${folder}/${name}" text)
    elseif(EXISTS "${PROJECT_SOURCE_DIR}/csrc/${name}")
      tdcore_flatten("${PROJECT_SOURCE_DIR}/csrc/${name}" text)
    else()
      string(APPEND text "${line}")
    endif()
  endwhile()
  set(${out} "${text}${rest}" PARENT_SCOPE)
endfunction()

# Checks whether nvcc works with this host compiler, and which of the architectures it supports.
function(tdcore_try_nvcc out_architectures out_error)
  execute_process(COMMAND "${TDCORE_NVCC}" --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET RESULT_VARIABLE failed)
  set(usable "")
  foreach(architecture IN LISTS TDCORE_CUDA_ARCHITECTURES)
    if(known MATCHES "sm_${architecture}[^0-9a-z]")
      list(APPEND usable ${architecture})
    endif()
  endforeach()
  set(${out_architectures} "${usable}" PARENT_SCOPE)
  if(failed OR usable STREQUAL "")
    set(${out_error} "it knows none of the architectures ${TDCORE_CUDA_ARCHITECTURES}" PARENT_SCOPE)
    return()
  endif()
  list(GET usable 0 first)
  set(probe "${CMAKE_CURRENT_BINARY_DIR}/nvcc_probe")
  file(WRITE "${probe}.cu" "#include <cstdint>\nextern \"C\" __global__ void probe(std::uint64_t* word) { *word = 1; }\n")
  execute_process(COMMAND "${TDCORE_NVCC}" ${TDCORE_NVCC_FLAGS} -fatbin -arch=sm_${first} -o "${probe}.fatbin" "${probe}.cu"
                  RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(failed)
    set(${out_error} "it does not work with ${CMAKE_CXX_COMPILER}:\n${said}" PARENT_SCOPE)
  else()
    set(${out_error} "" PARENT_SCOPE)
  endif()
endfunction()

# ---- The source as one text. ----------------------------------------------------------------------
set(TDCORE_KERNEL_SOURCE "${CMAKE_CURRENT_BINARY_DIR}/kernels.cu")
set(text "")
tdcore_flatten("${PROJECT_SOURCE_DIR}/csrc/cuda/kernels.cuh" text)
file(CONFIGURE OUTPUT "${TDCORE_KERNEL_SOURCE}" CONTENT "@text@" @ONLY NEWLINE_STYLE UNIX)

# ---- The fatbin. ----------------------------------------------------------------------------------
unset(TDCORE_KERNEL_FATBIN)
set(error "")
set(architectures "")
if(NOT TDCORE_CUDA STREQUAL "OFF")
  find_program(TDCORE_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin PATHS /usr/local/cuda/bin)
endif()
if(TDCORE_CUDA STREQUAL "OFF")
  message(STATUS "GPU kernels: nvcc is not used (TDCORE_CUDA=OFF); NVRTC compiles them at first use")
elseif(NOT TDCORE_NVCC)
  set(error "there is no nvcc")
else()
  # -ccbin: the compiler of the core, and not another compiler with the name g++.
  set(TDCORE_NVCC_FLAGS -std=c++20 -ccbin "${CMAKE_CXX_COMPILER}")
  tdcore_try_nvcc(architectures error)
endif()
if(error)
  if(TDCORE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "GPU kernels: ${error}. Install a CUDA toolkit (12.0 or newer), or configure with -DTDCORE_CUDA=AUTO.")
  endif()
  message(STATUS "GPU kernels: ${error}; they are left out, and NVRTC compiles them at first use")
elseif(architectures)
  set(code "")
  set(TDCORE_KERNEL_ARCHITECTURES "")
  foreach(architecture IN LISTS architectures)
    list(APPEND code -gencode arch=compute_${architecture},code=sm_${architecture})
    string(APPEND TDCORE_KERNEL_ARCHITECTURES "sm_${architecture} ")
  endforeach()
  execute_process(COMMAND "${TDCORE_NVCC}" --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
  set(oldest ${TDCORE_CUDA_PTX})
  if(NOT known MATCHES "compute_${oldest}[^0-9a-z]")
    list(GET architectures 0 oldest)
  endif()
  list(APPEND code -gencode arch=compute_${oldest},code=compute_${oldest})
  string(APPEND TDCORE_KERNEL_ARCHITECTURES "compute_${oldest}")
  # Drivers before 12.4 cannot unpack the default compression of newer compilers.
  execute_process(COMMAND "${TDCORE_NVCC}" --help OUTPUT_VARIABLE help ERROR_QUIET)
  if(help MATCHES "--compress-mode")
    list(APPEND code --compress-mode=speed)
  endif()
  # 177: the headers of the host have members that no kernel uses.
  set(command "${TDCORE_NVCC}" ${TDCORE_NVCC_FLAGS} --diag-suppress=177 --threads 0 -fatbin ${code})
  execute_process(COMMAND "${TDCORE_NVCC}" --version OUTPUT_VARIABLE version ERROR_QUIET)
  file(SHA256 "${TDCORE_KERNEL_SOURCE}" source)
  string(SHA256 key "${command};${version};${CMAKE_CXX_COMPILER_VERSION};${source}")
  string(SUBSTRING ${key} 0 16 key)
  set(folder "${CMAKE_CURRENT_BINARY_DIR}")
  if(TDCORE_KERNEL_CACHE)
    get_filename_component(folder "${TDCORE_KERNEL_CACHE}" ABSOLUTE BASE_DIR "${PROJECT_SOURCE_DIR}")
    file(MAKE_DIRECTORY "${folder}")
  endif()
  set(TDCORE_KERNEL_FATBIN "${folder}/kernels-${key}.fatbin")
  # No dependencies: other inputs have another name. The file is renamed because builds can run at the same time.
  string(SHA256 unfinished "${CMAKE_CURRENT_BINARY_DIR}")
  set(unfinished "${folder}/${unfinished}.fatbin")
  add_custom_command(
    OUTPUT "${TDCORE_KERNEL_FATBIN}"
    COMMAND ${command} -o "${unfinished}" "${TDCORE_KERNEL_SOURCE}"
    COMMAND "${CMAKE_COMMAND}" -E rename "${unfinished}" "${TDCORE_KERNEL_FATBIN}"
    COMMENT "Compiling the GPU kernels: ${TDCORE_KERNEL_ARCHITECTURES}"
    VERBATIM)
  add_custom_target(tdcore_kernels DEPENDS "${TDCORE_KERNEL_FATBIN}")
  # For a test that compares tdcore's declarations with the toolkit's headers. nvcc may be a script.
  execute_process(COMMAND "${TDCORE_NVCC}" --dryrun "${CMAKE_CURRENT_BINARY_DIR}/nvcc_probe.cu" OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(said MATCHES "TOP=([^\n]+)")
    set(TDCORE_CUDA_INCLUDE "${CMAKE_MATCH_1}/include")
  endif()
  message(STATUS "GPU kernels: ${TDCORE_NVCC} compiles them for ${TDCORE_KERNEL_ARCHITECTURES}")
endif()
