// How an API writes the answer to one of its requests.
#ifndef BATON_ROUTER_HTTP_ANSWER_FORMAT_H_
#define BATON_ROUTER_HTTP_ANSWER_FORMAT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "baton/v1/inference.pb.h"
#include "router/http/http_server.h"
#include "router/http/openai_logprobs.h"

namespace baton::router {

// One for each request. Used by one thread at a time. An answer is sent either as a stream, by
// Chunk for each delta and then StreamEnd or StreamError, or whole, by Add and then Whole.
class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;

  // The texts and tokens of the prompts that the answer repeats, one for each prompt. Call it
  // before the first delta, and only for an API that has such answers.
  virtual void SetEcho(std::vector<EchoedPrompt> echo) = 0;

  // The prompt has begun the answer's reasoning: AnswerParts::Options::starts_in_reasoning. Call it
  // before the first delta.
  virtual void StartInReasoning() = 0;

  // Counts the tokens of a delta, as it came from the workers: deltas that a client is slow to read
  // become one before they are given to Chunk. Call it once for each, before.
  virtual void Count(const v1::GenerateResponse& delta) {}

  // Server-sent events with what `delta` adds to its choice; empty if it adds nothing yet, because
  // its text may be the beginning of a tool call or of a stop string.
  virtual std::string Chunk(const v1::GenerateResponse& delta) = 0;
  // The events after those of the last delta.
  virtual std::string StreamEnd(const v1::Usage& usage) = 0;
  // The events that end a stream whose request has failed after its first token.
  virtual std::string StreamError(const absl::Status& error) = 0;

  virtual void Add(const v1::GenerateResponse& delta) = 0;
  // The answer as one JSON object, once all deltas were added. Call it once.
  virtual std::string Whole(const v1::Usage& usage) = 0;

  // The answer to a request that has failed before its first token.
  virtual HttpResponse Error(const absl::Status& error) const = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_ANSWER_FORMAT_H_
