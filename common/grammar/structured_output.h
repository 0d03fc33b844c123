// A worker's side of structured output: compiles grammars and computes the masks of tokens that may
// come next, in two grammar processes (grammar_process.h). One compiles; the other, which a
// client's schema reaches only once it has compiled, computes masks. So a compilation delays no
// mask.
//
// A mask depends on the grammar and the answer's tokens alone: a continuation on another worker, or
// in a restarted process, gets the same masks.
//
// Both processes are started for the first request that needs them.
#ifndef BATON_COMMON_GRAMMAR_STRUCTURED_OUTPUT_H_
#define BATON_COMMON_GRAMMAR_STRUCTURED_OUTPUT_H_

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/grammar/grammar.h"
#include "common/grammar/grammar_process.h"

namespace baton::grammar {

// A compiled grammar. Immutable.
struct CompiledGrammar {
  uint64_t id = 0;  // unique in its StructuredOutput
  std::string serialized;
};

struct StructuredOutputOptions {
  ProcessOptions process;
  // How long to wait for a compilation, or for a mask, before a new process gets the same request.
  // A process that computes too long ends itself (process.*_cpu_limit); one that reaches these
  // limits does not run, because the machine stalls or others have the processor, so its grammar is
  // not blamed. A compilation has a low priority: on a crowded machine, compile_cpu_limit alone may
  // take this long. A mask's limit, during which the step waits, is below the router's
  // --stall-timeout-ms.
  absl::Duration compile_limit = absl::Seconds(60);
  absl::Duration mask_limit = absl::Seconds(3);
  int max_queued = 64;                       // grammars that wait to be compiled
  int64_t cache_bytes = int64_t{256} << 20;  // of serialized grammars
};

class StructuredOutput {
 public:
  using Compiled = absl::StatusOr<std::shared_ptr<const CompiledGrammar>>;

  explicit StructuredOutput(StructuredOutputOptions options);
  // Stops and ends both processes. REQUIRES: no call of Masks.
  ~StructuredOutput();
  // Thread-safe. Ends a compilation and fails with UNAVAILABLE (DRAINING) what waits or comes.
  void Stop();

  // Thread-safe. Calls `done` once: with a grammar, for which Masks may be called, or with
  // INVALID_ARGUMENT (SCHEMA_INVALID, SCHEMA_TOO_COMPLEX: time or memory), RESOURCE_EXHAUSTED
  // (GRAMMAR_QUEUE_FULL, GRAMMAR_CACHE_FULL), or UNAVAILABLE (GRAMMAR_PROCESS_LOST: no process
  // starts, or two did not answer within compile_limit). It does so on the compiling thread, or on
  // this one if the queue is full. `id` names the request for Cancel.
  void Compile(uint64_t id, GrammarSpec spec, absl::AnyInvocable<void(Compiled)> done);
  // Thread-safe. A request that waits leaves the queue: its `done` gets CANCELLED, on this thread.
  // Any other is left alone: a compilation that runs ends, and is kept for other requests.
  void Cancel(uint64_t id);

  struct Item {
    uint64_t session = 0;  // the sequence: its tokens only ever grow
    const CompiledGrammar* grammar = nullptr;
    absl::Span<const int32_t> tokens;  // the answer so far
    // Tokens that may follow. They do not count to the answer.
    absl::Span<const int32_t> drafts = {};
  };
  // One bit for each token: bit i % 32 of word i / 32 is set if token i may follow.
  using Mask = std::vector<uint32_t>;
  // Returns for each item the mask of the token behind its tokens, and those of the tokens behind
  // its drafts, as far as these follow the grammar: at least one. An error is that item's: INTERNAL
  // (GRAMMAR_PROCESS_LOST), or INVALID_ARGUMENT (NO_TOKEN_LEFT) if nothing may follow. Waits for
  // the masks. The first call after the process was lost also waits for another to start. Thread:
  // one at a time; likewise Close.
  std::vector<absl::StatusOr<std::vector<Mask>>> Masks(absl::Span<const Item> items);
  // The session ends; its state is freed with the next call of Masks.
  void Close(uint64_t session);

  // The processes that run, for tests; 0 for none.
  pid_t compiling_pid() const;
  pid_t mask_pid() const;

 private:
  struct Job {
    uint64_t id = 0;
    GrammarSpec spec;
    absl::AnyInvocable<void(Compiled)> done;
  };
  struct Cached {
    std::shared_ptr<const CompiledGrammar> grammar;
    std::list<GrammarSpec>::iterator recency;
  };
  struct Session {
    uint64_t process = 0;  // number of the process that knows the tokens
    size_t tokens = 0;     // how many it knows
    bool drafts = true;    // a process was not lost behind one of its drafts
  };

  void Run();
  Compiled CompileNow(const GrammarSpec& spec);
  // Runs the compiler, again in a new process if it is lost.
  absl::StatusOr<std::string> RunCompiler(const GrammarSpec& spec);
  // The process that compiles, started if there is none.
  absl::StatusOr<std::shared_ptr<GrammarProcess>> Compiler();
  absl::StatusOr<std::shared_ptr<GrammarProcess>> StartProcess() const;
  void RememberFailure(const GrammarSpec& spec);
  // Frees the least recently used grammars that no request uses. False if `bytes` do not fit.
  bool MakeRoom(size_t bytes);
  // The mask process, started if there is none or if it is `lost`.
  absl::StatusOr<std::shared_ptr<GrammarProcess>> MaskProcess(const GrammarProcess* lost);
  absl::Status LoadForMasks(const CompiledGrammar& grammar);
  // The item that the process worked on when it was lost.
  struct Loss {
    size_t item = 0;
    absl::Status status;
  };
  // Asks for the masks of the items without a result. After a loss, some still have none.
  std::optional<Loss> AskForMasks(
      GrammarProcess& process, absl::Span<const Item> items, bool with_drafts,
      std::vector<std::optional<absl::StatusOr<std::vector<Mask>>>>& results);

  const StructuredOutputOptions options_;

  // Only the compiling thread uses these.
  std::map<GrammarSpec, Cached> cache_;
  std::list<GrammarSpec> recency_;  // most recently used first
  int64_t cached_bytes_ = 0;
  std::list<GrammarSpec> too_complex_;  // compiled once, in vain; the latest first
  uint64_t last_id_ = 0;

  // Only the thread that calls Masks uses these.
  absl::flat_hash_map<uint64_t, Session> sessions_;
  std::vector<uint64_t> closed_;

  absl::Mutex start_mutex_;  // held while a mask process starts
  mutable absl::Mutex mutex_;
  std::shared_ptr<GrammarProcess> compiler_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<GrammarProcess> masker_ ABSL_GUARDED_BY(mutex_);
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace baton::grammar

#endif  // BATON_COMMON_GRAMMAR_STRUCTURED_OUTPUT_H_
