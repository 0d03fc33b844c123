#include "simulator/trace.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace baton::simulator {
namespace {

constexpr uint64_t kOdd = 0x9E3779B97F4A7C15u;

// By Newton's iteration: each step doubles the number of right bits.
constexpr uint64_t InverseOf(uint64_t odd) {
  uint64_t inverse = odd;
  for (int i = 0; i < 6; ++i) inverse *= 2 - odd * inverse;
  return inverse;
}
static_assert(kOdd * InverseOf(kOdd) == 1);

constexpr int64_t kMostTokens = 1 << 24;
constexpr int64_t kMostMilliseconds = int64_t{1} << 40;

constexpr int64_t kSecond_us = 1'000'000;

// The clock of a trace may tick each few seconds: those of one tick are spread evenly over it, as a
// burst each tick is nothing that users did. Where a time is no whole second, the clock is finer,
// and equal times are a burst.
void SpreadTicks(std::vector<SimRequest>* requests) {
  if (std::any_of(requests->begin(), requests->end(),
                  [](const SimRequest& request) { return request.at_us % kSecond_us != 0; })) {
    return;
  }
  for (size_t begin = 0, end = 0; begin < requests->size(); begin = end) {
    const int64_t at_us = (*requests)[begin].at_us;
    while (end < requests->size() && (*requests)[end].at_us == at_us) ++end;
    if (end == requests->size()) return;  // how long the last tick is, is unknown
    const int64_t tick_us = (*requests)[end].at_us - at_us;
    for (size_t i = begin; i < end; ++i) {
      (*requests)[i].at_us +=
          tick_us * static_cast<int64_t>(i - begin) / static_cast<int64_t>(end - begin);
    }
  }
}

bool IsInteger(const nlohmann::json& object, const char* field, int64_t lowest, int64_t highest) {
  const auto found = object.find(field);
  if (found == object.end() || !found->is_number_integer()) return false;
  const auto value = found->get<int64_t>();
  return value >= lowest && value <= highest;
}

}  // namespace

kv::PrefixKey BlockKey(int32_t block) { return (static_cast<uint64_t>(block) + 1) * kOdd; }

int32_t BlockOfKey(kv::PrefixKey key) { return static_cast<int32_t>(key * InverseOf(kOdd) - 1); }

absl::StatusOr<Trace> ReadMooncakeTrace(const std::string& path, std::string name) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  Trace trace;
  trace.name = std::move(name);
  absl::flat_hash_map<int64_t, int32_t> dense;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !IsInteger(json, "timestamp", 0, kMostMilliseconds) ||
        !IsInteger(json, "input_length", 1, kMostTokens) ||
        (json.contains("hash_ids") && !json["hash_ids"].is_array()) ||
        (json.contains("output_length") && !IsInteger(json, "output_length", 0, kMostTokens))) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number,
                       ": expected {timestamp: ms, input_length: tokens, output_length: tokens, "
                       "hash_ids: [...]}, the last two of which may be missing"));
    }
    SimRequest request;
    request.at_us = json["timestamp"].get<int64_t>() * 1000;
    request.prompt_tokens = json["input_length"].get<int>();
    if (json.contains("output_length")) request.output_tokens = json["output_length"].get<int>();
    if (!json.contains("hash_ids")) {
      trace.requests.push_back(std::move(request));
      continue;
    }
    const size_t whole = request.prompt_tokens / kSimBlockTokens;
    for (const auto& id : json["hash_ids"]) {
      if (!id.is_number_integer()) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ":", number, ": expected integers in hash_ids"));
      }
      if (request.blocks.size() == whole) break;
      const auto next = static_cast<int32_t>(dense.size());
      request.blocks.push_back(dense.try_emplace(id.get<int64_t>(), next).first->second);
    }
    if (request.blocks.size() != whole) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": expected an id per ", kSimBlockTokens, " tokens"));
    }
    trace.requests.push_back(std::move(request));
  }
  std::stable_sort(trace.requests.begin(), trace.requests.end(),
                   [](const auto& a, const auto& b) { return a.at_us < b.at_us; });
  SpreadTicks(&trace.requests);
  trace.block_count = static_cast<int>(dense.size());
  return trace;
}

double InfiniteCacheHitRate(const Trace& trace) {
  std::vector<bool> seen(trace.block_count);
  int64_t hit = 0, all = 0;
  for (const SimRequest& request : trace.requests) {
    size_t depth = 0;
    while (depth < request.blocks.size() && seen[request.blocks[depth]]) ++depth;
    for (int32_t block : request.blocks) seen[block] = true;
    hit +=
        std::min<int64_t>(static_cast<int64_t>(depth) * kSimBlockTokens, request.prompt_tokens - 1);
    all += request.prompt_tokens;
  }
  return all == 0 ? 0 : static_cast<double>(hit) / static_cast<double>(all);
}

}  // namespace baton::simulator
