// A request that is ready to be sent: checked, tokenized, with all defaults filled in; and what the
// router itself needs to answer it.
#ifndef BATON_ROUTER_REQUEST_PREPARED_REQUEST_H_
#define BATON_ROUTER_REQUEST_PREPARED_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "baton/internal/v1/decode.pb.h"
#include "common/kv/prefix_key.h"
#include "router/request/prompt_sources.h"

namespace baton::router {

// A request that can be sent to any pair of workers.
struct PreparedRequest {
  internal::v1::DecodeRequest decode;  // complete except for the workers' addresses, ids and epochs
  kv::PrefixKey root = 0;              // the namespace of `keys`
  int block_tokens = 16;
  std::vector<kv::PrefixKey> keys;
  std::vector<std::string> stops;
  bool return_token_ids = false;
  bool prompt_only = false;  // max_tokens was 0: the one token of `decode` is dropped
  bool explain_cache = false;
  // Special tokens that are part of the text; the others are not.
  std::vector<int32_t> shown_special_tokens;
  std::vector<SourceRun> sources;  // with segments: of the prompt that is sent
  int dropped_prompt_tokens = 0;   // by truncation
};

// Such an answer is complete with the prompt: a prefill worker gives it alone, without moving KV.
inline bool IsOneToken(const internal::v1::DecodeRequest& request) {
  return request.max_tokens() == 1 && request.n() <= 1 && request.beam_width() == 0 &&
         !request.has_structured_output();
}

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_PREPARED_REQUEST_H_
