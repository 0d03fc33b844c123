// What --speculative and --speculative-priorities say: how a decode worker drafts tokens, and for
// which requests. docs/speculation.md.
#ifndef BATON_DECODE_WORKER_DRAFTS_SPECULATION_OPTIONS_H_
#define BATON_DECODE_WORKER_DRAFTS_SPECULATION_OPTIONS_H_

#include <array>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::decode_worker {

// Bounds of the flag's numbers.
inline constexpr int kMostDrafts = 32;  // of a sequence in a step
inline constexpr int kLongestNgram = 32;
// The most drafts of an MTP head, unless the flag says another number. A head is made for one
// token, and its error grows with each further one.
inline constexpr int kDraftsOfMtpHead = 3;

struct SpeculationOptions {
  enum class Mode { kOff, kSuffix, kNgram, kDraft, kMtp };
  Mode mode = Mode::kOff;
  std::string draft_model;  // kDraft: its directory or GGUF file
  int max_drafts = 8;       // of a sequence in a step
  // kNgram looks up this many last tokens, the most first. The other modes have 0.
  int ngram_min = 0;
  int ngram_max = 0;
  // By Priority: whether requests of it are drafted for.
  std::array<bool, 3> priorities = {true, true, true};
};

// Reads "off", "suffix", "suffix:K", "ngram:K,MIN,MAX", "draft:DIR", "draft:DIR,K", "mtp" or
// "mtp:K"; the priorities are all set. A DIR may have commas, but for one before a number at its
// end. INVALID_ARGUMENT, naming the flag.
absl::StatusOr<SpeculationOptions> ParseSpeculation(absl::string_view text);
// Reads a list such as "low,normal", of at least one priority; its order means nothing.
// INVALID_ARGUMENT, naming the flag.
absl::StatusOr<std::array<bool, 3>> ParseSpeculativePriorities(absl::string_view text);

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_DRAFTS_SPECULATION_OPTIONS_H_
