// Cache misses of requests: found by the history of prompts, priced by the route planner, and shown
// with the tokenizer.
#ifndef BATON_ROUTER_REQUEST_CACHE_MISS_H_
#define BATON_ROUTER_REQUEST_CACHE_MISS_H_

#include <optional>

#include "baton/v1/inference.pb.h"
#include "router/request/prepared_request.h"
#include "router/request/router_parts.h"
#include "router/routing/route.h"

namespace baton::router {

// The miss of a prompt of which `route` finds `cached_tokens` cached, with its texts. nullopt if it
// is none, or nothing is known of it. Changes nothing.
std::optional<v1::CacheMiss> ExplainCacheMiss(const RouterParts& parts,
                                              const PreparedRequest& prepared, const Route& route,
                                              int cached_tokens);

// The prompt has been computed on `route`, and `cached_tokens` of it were cached: counts a miss of
// at least a block in the metrics. Returns the miss, with its texts, if the request asks for it.
// Some microseconds for prompts of a few thousand tokens.
std::optional<v1::CacheMiss> RecordCached(RouterParts& parts, const PreparedRequest& prepared,
                                          const Route& route, int cached_tokens);

// Keeps a prompt that has been computed, to explain later misses by it. The first copies what it
// keeps of `prepared`, the second takes it.
void RememberPrompt(RouterParts& parts, const PreparedRequest& prepared);
void RememberPrompt(RouterParts& parts, PreparedRequest&& prepared);

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_CACHE_MISS_H_
