// The process that runs XGrammar, baton-grammar: one that compiles grammars, or one that keeps
// compiled ones and computes masks. It may hang or crash on a client's schema; then it is killed
// and started again, and the worker goes on.
//
// Protocol (frames.h). Control socket, one reply for each request:
//   kHello    model_dir, token count, end token ids, milliseconds of the processor for a
//             compilation and for a mask             ->  status
//   kCompile  kind, any white space, whether there
//             is reasoning and then what begins and
//             ends it, texts                         ->  status, serialized grammar: the special
//                                                        tokens that it names, XGrammar's, whether
//                                                        there is reasoning, its two texts
//   kLoad     grammar id, serialized grammar         ->  status
//   kUnload   grammar id                             ->  status
// Mask socket: closed sessions, then items of {session, grammar id, tokens known, further tokens,
// drafts}; one reply for each item: status, masks, of the token behind the further ones and behind
// each draft that follows the grammar. An item of which no token is known starts its session, and
// no session goes on over drafts.
// A status is a reason and a message; an empty reason is OK.
#ifndef BATON_COMMON_GRAMMAR_GRAMMAR_PROCESS_H_
#define BATON_COMMON_GRAMMAR_GRAMMAR_PROCESS_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace baton::grammar {

enum class Request : uint8_t { kHello = 0, kCompile = 1, kLoad = 2, kUnload = 3 };
inline constexpr int kControlFd = 3;  // in the child
inline constexpr int kMaskFd = 4;
inline constexpr size_t kTokensPerLimit = 256;

struct ProcessOptions {
  std::string program;    // path of baton-grammar
  std::string model_dir;  // with tokenizer.json
  int token_count = 0;    // logits of the model: bits of a mask
  std::vector<int32_t> end_token_ids;
  int64_t memory_bytes = int64_t{2} << 30;  // RLIMIT_AS
  // Processor time of one compilation and of one mask: what else the machine does must not decide
  // what compiles, nor end an answer. Accepting the tokens of a continuation has the time of a mask
  // again for each kTokensPerLimit tokens. Both are whole milliseconds, 1 or more.
  absl::Duration compile_cpu_limit = absl::Seconds(2);
  absl::Duration mask_cpu_limit = absl::Seconds(1);
  absl::Duration start_limit = absl::Seconds(60);  // to start and to read the tokenizer
};

// Control is thread-safe; the mask socket belongs to one thread. The process ends at the latest
// with the thread that started it.
class GrammarProcess {
 public:
  // Starts the process and waits until it has read the tokenizer. Errors are the process's
  // (BAD_TOKENIZER), or UNAVAILABLE.
  static absl::StatusOr<std::shared_ptr<GrammarProcess>> Start(const ProcessOptions& options);
  // Kills and reaps it.
  ~GrammarProcess();
  GrammarProcess(const GrammarProcess&) = delete;
  GrammarProcess& operator=(const GrammarProcess&) = delete;

  // Sends a request and returns the reply without its status. The process's errors are
  // INVALID_ARGUMENT with its reason. DEADLINE_EXCEEDED or UNAVAILABLE, without a reason: there is
  // no answer. The process is killed then, as a late reply would be taken for that of the next
  // request, and must be replaced.
  absl::StatusOr<std::string> Control(const std::string& request, absl::Duration limit);

  // The same for a grammar that the process shall keep. Returns at once if it has it.
  absl::Status Load(uint64_t grammar_id, const std::string& serialized, absl::Duration limit);
  void Unload(uint64_t grammar_id, absl::Duration limit);

  // Thread-safe. What waits for a reply gets UNAVAILABLE.
  void Kill();
  // Ends the process unless it has ended, and waits for that. True if it ended at a limit of the
  // processor's time.
  bool EndedAtCpuLimit();

  int mask_fd() const { return mask_fd_; }
  pid_t pid() const { return pid_; }
  uint64_t number() const { return number_; }  // 1 or more, unique in this process

 private:
  GrammarProcess(pid_t pid, int control_fd, int mask_fd);

  const pid_t pid_;
  const int control_fd_;
  const int mask_fd_;
  const uint64_t number_;
  absl::Mutex mutex_;  // held while the process works on a request
  absl::Mutex loaded_mutex_;
  absl::flat_hash_set<uint64_t> loaded_ ABSL_GUARDED_BY(loaded_mutex_);
};

// The two halves of a status in a frame.
class FrameWriter;
class FrameReader;
void WriteStatus(const absl::Status& status, FrameWriter& writer);
// INVALID_ARGUMENT with the reason, or OK.
absl::Status ReadStatus(FrameReader& reader);

}  // namespace baton::grammar

#endif  // BATON_COMMON_GRAMMAR_GRAMMAR_PROCESS_H_
