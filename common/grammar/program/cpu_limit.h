// Bounds how long a thread computes, in time of the processor: a machine that stalls, or has other
// work, uses none of it up.
#ifndef BATON_COMMON_GRAMMAR_PROGRAM_CPU_LIMIT_H_
#define BATON_COMMON_GRAMMAR_PROGRAM_CPU_LIMIT_H_

#include <time.h>

#include <cstdint>

namespace baton::grammar {

// Belongs to the thread that makes it.
class CpuLimit {
 public:
  // Ends the process, with a line in the log, if the system has no timer left.
  CpuLimit();
  ~CpuLimit();
  CpuLimit(const CpuLimit&) = delete;
  CpuLimit& operator=(const CpuLimit&) = delete;

  // While it lives, the thread may compute for so many milliseconds. Then SIGPROF ends the process.
  class Scope {
   public:
    Scope(CpuLimit& limit, uint64_t milliseconds) : limit_(limit) { limit_.Set(milliseconds); }
    ~Scope() { limit_.Set(0); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    CpuLimit& limit_;
  };

 private:
  void Set(uint64_t milliseconds);  // 0: no limit

  timer_t timer_;
};

}  // namespace baton::grammar

#endif  // BATON_COMMON_GRAMMAR_PROGRAM_CPU_LIMIT_H_
