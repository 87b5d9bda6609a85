// check.hpp: a small test framework for the C++ tests: named cases, which continue after a failure.
// Threads: require() from any thread.
#pragma once

#include <atomic>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

namespace tdcore::testing {

inline std::atomic<int> failures{0};  // relaxed: read after all threads have been joined

inline void require(bool ok, const char* condition, const char* file, int line) {
  if (ok) return;
  std::fprintf(stderr, "%s:%d: not true: %s\n", file, line, condition);
  failures.fetch_add(1, std::memory_order_relaxed);
}

/// Runs one case; the name is a sentence.
template <typename Case>
void it(const char* name, Case&& run) {
  const int before = failures.load(std::memory_order_relaxed);
  try {
    run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "unexpected: %s\n", error.what());
    failures.fetch_add(1, std::memory_order_relaxed);
  }
  if (failures.load(std::memory_order_relaxed) != before) std::fprintf(stderr, "FAILED: %s\n", name);
}

/// The message of the Error that `run` throws; empty if it throws none.
template <typename Error, typename Run>
std::string message_of(Run&& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

inline int result() { return failures.load(std::memory_order_relaxed) == 0 ? 0 : 1; }

// Sanitizers are detected by __has_feature with Clang, and by macros with GCC.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer) && !defined(__SANITIZE_THREAD__)
#define __SANITIZE_THREAD__
#endif
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__
#endif
#endif

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitized = true;
#else
inline constexpr bool kThreadSanitized = false;
#endif

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace tdcore::testing

#define REQUIRE(condition) ::tdcore::testing::require((condition), #condition, __FILE__, __LINE__)
