// Threads with names, which `top -H`, debuggers and /proc/PID/task/TID/comm show.
#ifndef BATON_COMMON_BASE_NAMED_THREAD_H_
#define BATON_COMMON_BASE_NAMED_THREAD_H_

#include <pthread.h>

#include <cstddef>
#include <string>
#include <thread>
#include <utility>

namespace baton {

// Starts a thread that runs `run`. Several may have one name. Linux keeps 15 characters.
template <size_t kSize, class Run>
std::thread NamedThread(const char (&name)[kSize], Run run) {
  static_assert(kSize <= 16);
  return std::thread([name = std::string(name), run = std::move(run)]() mutable {
    pthread_setname_np(pthread_self(), name.c_str());
    run();
  });
}

}  // namespace baton

#endif  // BATON_COMMON_BASE_NAMED_THREAD_H_
