#include "decode_worker/grammar_request.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/grammar/from_proto.h"
#include "common/grammar/schema_check.h"

namespace baton::decode_worker {
namespace {

std::string BesideThisProgram() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "" : (self.parent_path() / "baton-grammar").string();
}

}  // namespace

std::unique_ptr<grammar::StructuredOutput> MakeStructuredOutput(const std::string& program,
                                                                const std::string& model_dir,
                                                                const engine::Engine& engine) {
  grammar::StructuredOutputOptions options;
  options.process.program = program.empty() ? BesideThisProgram() : program;
  options.process.model_dir = model_dir;
  options.process.token_count = engine.config().token_count;
  options.process.end_token_ids.assign(engine.config().eos_token_ids.begin(),
                                       engine.config().eos_token_ids.end());
  if (access(options.process.program.c_str(), X_OK) != 0) return nullptr;
  return std::make_unique<grammar::StructuredOutput>(std::move(options));
}

absl::Status CheckStructuredOutput(const internal::v1::DecodeRequest& request, bool available,
                                   const engine::Engine& engine) {
  if (!request.has_structured_output()) return absl::OkStatus();
  const auto unavailable = [](absl::string_view why) {
    return MakeError(absl::StatusCode::kUnimplemented, "STRUCTURED_OUTPUT_UNAVAILABLE", why);
  };
  if (!available) {
    return unavailable(
        "the decode worker has no baton-grammar beside it: built without "
        "BATON_STRUCTURED_OUTPUT");
  }
  const auto& ends = engine.config().eos_token_ids;
  if (ends.empty()) return unavailable("the model names no end-of-sequence token");
  const auto& stops = request.stop_token_ids();
  const bool ignores_eos = std::any_of(ends.begin(), ends.end(), [&](int32_t end) {
    return std::find(stops.begin(), stops.end(), end) == stops.end();
  });
  BATON_RETURN_IF_ERROR(
      grammar::CheckBeside(request.beam_width() > 0, ignores_eos, request.min_tokens() > 0));
  return grammar::CheckSpec(grammar::FromProto(request.structured_output()));
}

}  // namespace baton::decode_worker
