#include "router/request/answer_length.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "common/kv/answer_blocks.h"

namespace baton::router {
namespace {

// What the KV pools leave for the answer.
int64_t RoomInPools(const ModelInfo& model, int prompt_tokens, int beams) {
  int64_t room = std::numeric_limits<int64_t>::max();
  for (const int pages : model.decode_pages) {
    const int64_t longest =
        kv::LongestAnswer(prompt_tokens, beams, model.block_tokens, pages, model.block_shape);
    if (longest > 0) room = std::min(room, longest);
  }
  return room;
}

}  // namespace

int DefaultAnswerTokens(const ModelInfo& model, const RequestClass& request_class) {
  int tokens = request_class.default_max_tokens > 0 ? request_class.default_max_tokens
                                                    : std::max(0, model.defaults.max_new_tokens());
  if (request_class.max_output_tokens <= 0) return tokens;
  return tokens > 0 ? std::min(tokens, request_class.max_output_tokens)
                    : request_class.max_output_tokens;
}

int DefaultMaxTokens(const v1::GenerateRequest& request, const ModelInfo& model,
                     const RequestClass& request_class, int prompt_tokens, int room) {
  const int answer = DefaultAnswerTokens(model, request_class);
  const int64_t most = std::min<int64_t>(answer > 0 ? answer : room,
                                         RoomInPools(model, prompt_tokens, request.beam_width()));
  return static_cast<int>(
      std::min<int64_t>(room, std::max<int64_t>(most, request.stop().min_tokens())));
}

}  // namespace baton::router
