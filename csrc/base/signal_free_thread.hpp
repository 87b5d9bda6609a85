// signal_free_thread.hpp: threads of the core. They receive no signals, which are for the application's
// threads. Threads: start_signal_free_thread() from any thread.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <memory>
#include <thread>
#include <utility>

namespace tdcore {

/// nullptr if no thread can be started.
template <typename Work>
std::unique_ptr<std::thread> start_signal_free_thread(Work&& work) noexcept {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  const bool masked = ::pthread_sigmask(SIG_SETMASK, &all, &before) == 0;  // the new thread inherits it
  std::unique_ptr<std::thread> thread;
  try {
    thread = std::make_unique<std::thread>(std::forward<Work>(work));
  } catch (...) {  // the caller goes on without
  }
  if (masked) (void)::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace tdcore
