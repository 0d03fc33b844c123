// Structured output of a Decode call: checked, and compiled before the call reaches the loop.
#ifndef BATON_DECODE_WORKER_GRAMMAR_REQUEST_H_
#define BATON_DECODE_WORKER_GRAMMAR_REQUEST_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "baton/internal/v1/decode.pb.h"
#include "common/engine/engine.h"
#include "common/grammar/structured_output.h"

namespace baton::decode_worker {

// `program`: the path of baton-grammar; empty: beside this program. Null if there is none.
std::unique_ptr<grammar::StructuredOutput> MakeStructuredOutput(const std::string& program,
                                                                const std::string& model_dir,
                                                                const engine::Engine& engine);

// INVALID_ARGUMENT, naming the field, as the router's checks; UNIMPLEMENTED if the worker has no
// baton-grammar (`available`), or the model no end-of-sequence token. OK without structured output.
absl::Status CheckStructuredOutput(const internal::v1::DecodeRequest& request, bool available,
                                   const engine::Engine& engine);

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_GRAMMAR_REQUEST_H_
