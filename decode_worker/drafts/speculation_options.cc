#include "decode_worker/drafts/speculation_options.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/error.h"
#include "common/base/utf8.h"

namespace baton::decode_worker {
namespace {

constexpr size_t kMaxShownBytes = 64;

absl::Status BadSpeculation(absl::string_view text) {
  return InvalidField("BAD_OPTION", "--speculative",
                      absl::StrCat("\"", ClipToUtf8(text, kMaxShownBytes),
                                   "\" given, expected off, suffix, suffix:K, ngram:K,MIN,MAX, "
                                   "draft:DIR, draft:DIR,K, mtp or "
                                   "mtp:K, where K is 1 to ",
                                   kMostDrafts, " and 1 <= MIN <= MAX <= ", kLongestNgram));
}

bool ParseCount(absl::string_view text, int most, int* count) {
  return absl::SimpleAtoi(text, count) && absl::StrCat(*count) == text && *count >= 1 &&
         *count <= most;
}

}  // namespace

absl::StatusOr<SpeculationOptions> ParseSpeculation(absl::string_view text) {
  SpeculationOptions options;
  if (text == "off") return options;
  absl::string_view rest = text;
  const bool suffix = absl::ConsumePrefix(&rest, "suffix");
  if (suffix || absl::ConsumePrefix(&rest, "mtp")) {
    options.mode = suffix ? SpeculationOptions::Mode::kSuffix : SpeculationOptions::Mode::kMtp;
    if (!suffix) options.max_drafts = kDraftsOfMtpHead;
    if (rest.empty()) return options;
    if (absl::ConsumePrefix(&rest, ":") && ParseCount(rest, kMostDrafts, &options.max_drafts)) {
      return options;
    }
  } else if (absl::ConsumePrefix(&rest, "ngram:")) {
    options.mode = SpeculationOptions::Mode::kNgram;
    const std::vector<absl::string_view> counts = absl::StrSplit(rest, absl::MaxSplits(',', 3));
    if (counts.size() == 3 && ParseCount(counts[0], kMostDrafts, &options.max_drafts) &&
        ParseCount(counts[1], kLongestNgram, &options.ngram_min) &&
        ParseCount(counts[2], kLongestNgram, &options.ngram_max) &&
        options.ngram_min <= options.ngram_max) {
      return options;
    }
  } else if (absl::ConsumePrefix(&rest, "draft:")) {
    options.mode = SpeculationOptions::Mode::kDraft;
    if (const size_t comma = rest.rfind(','); comma != rest.npos) {
      const absl::string_view count = rest.substr(comma + 1);
      if (std::all_of(count.begin(), count.end(), absl::ascii_isdigit)) {
        if (!ParseCount(count, kMostDrafts, &options.max_drafts)) return BadSpeculation(text);
        rest = rest.substr(0, comma);
      }
    }
    options.draft_model = std::string(rest);
    if (!rest.empty()) return options;
  }
  return BadSpeculation(text);
}

absl::StatusOr<std::array<bool, 3>> ParseSpeculativePriorities(absl::string_view text) {
  constexpr absl::string_view kNames[] = {"low", "normal", "high"};
  std::array<bool, 3> chosen = {false, false, false};
  for (const absl::string_view given : absl::StrSplit(text, ',')) {
    size_t i = 0;
    while (i < chosen.size() && given != kNames[i]) ++i;
    if (i == chosen.size()) {
      return InvalidField("BAD_OPTION", "--speculative-priorities",
                          absl::StrCat("\"", ClipToUtf8(text, kMaxShownBytes),
                                       "\" given, expected low, normal and high, or some of them, "
                                       "separated by commas"));
    }
    chosen[i] = true;
  }
  return chosen;
}

}  // namespace baton::decode_worker
