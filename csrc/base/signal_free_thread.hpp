// signal_free_thread.hpp: threads of the core, which receive no signals, so that the application's threads
// handle them. Threads: start_signal_free_thread() from any thread.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <memory>
#include <thread>
#include <utility>

namespace tdcore {

/// Starts a thread that calls `work`. Returns nullptr if no thread can be started.
template <typename Work>
std::unique_ptr<std::thread> start_signal_free_thread(Work&& work) noexcept {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  const bool masked = ::pthread_sigmask(SIG_SETMASK, &all, &before) == 0;  // the new thread inherits the mask
  std::unique_ptr<std::thread> thread;
  try {
    thread = std::make_unique<std::thread>(std::forward<Work>(work));
  } catch (...) {  // the caller continues without a thread
  }
  if (masked) (void)::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace tdcore
