#include "common/tokenizer/decoder.h"

#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/unicode.h"

namespace baton::tokenizer {
namespace {

using Next = std::unique_ptr<DecodeStep>;

// The end of the chain: tokens follow each other without a gap.
class Collect : public DecodeStep {
 public:
  explicit Collect(std::string* out) : out_(out) {}
  absl::Status Text(absl::string_view text) override {
    out_->append(text.data(), text.size());
    return absl::OkStatus();
  }
  absl::Status EndToken() override { return absl::OkStatus(); }
  absl::Status Finish() override { return absl::OkStatus(); }

 private:
  std::string* const out_;
};

class Step : public DecodeStep {
 public:
  explicit Step(Next next) : next_(std::move(next)) {}
  absl::Status Text(absl::string_view text) override { return next_->Text(text); }
  absl::Status EndToken() override { return next_->EndToken(); }
  absl::Status Finish() override { return next_->Finish(); }

 protected:
  absl::Status PassToken(absl::string_view token) {
    BATON_RETURN_IF_ERROR(next_->Text(token));
    return next_->EndToken();
  }
  DecodeStep& next() { return *next_; }

 private:
  const Next next_;
};

// For steps that look at a token as a whole.
class WholeTokenStep : public Step {
 public:
  using Step::Step;
  absl::Status Text(absl::string_view text) final {
    token_.append(text.data(), text.size());
    return absl::OkStatus();
  }
  absl::Status EndToken() final {
    const std::string token = std::exchange(token_, std::string());
    return Token(token);
  }

 protected:
  virtual absl::Status Token(absl::string_view token) = 0;

 private:
  std::string token_;
};

// What a file without a decoder means.
class JoinBySpace : public Step {
 public:
  JoinBySpace(TextPosition position, Next next)
      : Step(std::move(next)), is_first_(position == TextPosition::kStart) {}
  absl::Status Text(absl::string_view text) override {
    BATON_RETURN_IF_ERROR(Start());
    return next().Text(text);
  }
  absl::Status EndToken() override {
    BATON_RETURN_IF_ERROR(Start());
    started_ = false;
    return next().EndToken();
  }

 private:
  absl::Status Start() {
    if (std::exchange(started_, true) || std::exchange(is_first_, false)) return absl::OkStatus();
    return next().Text(" ");
  }

  bool is_first_;
  bool started_ = false;
};

class ReplaceStep : public WholeTokenStep {
 public:
  ReplaceStep(const Replace& replace, Next next)
      : WholeTokenStep(std::move(next)), replace_(replace) {}

 protected:
  absl::Status Token(absl::string_view token) override {
    if (token.empty()) return PassToken(token);
    std::string result;
    size_t kept_to = 0;
    BATON_RETURN_IF_ERROR(replace_.pattern.ForEachMatch(token, [&](size_t begin, size_t end) {
      absl::StrAppend(&result, token.substr(kept_to, begin - kept_to), replace_.content);
      kept_to = end;
    }));
    absl::StrAppend(&result, token.substr(kept_to));
    return PassToken(result);
  }

 private:
  const Replace& replace_;
};

// A run of byte tokens is text if all of it is UTF-8, and otherwise one U+FFFD for each byte: so a
// run is certain only when it ends, and is held until then.
class ByteFallbackStep : public WholeTokenStep {
 public:
  using WholeTokenStep::WholeTokenStep;
  absl::Status Finish() override {
    BATON_RETURN_IF_ERROR(EndRun());
    return Step::Finish();
  }

 protected:
  absl::Status Token(absl::string_view token) override {
    if (const std::optional<char> byte = ByteOfToken(token)) {
      run_.push_back(*byte);
      return absl::OkStatus();
    }
    BATON_RETURN_IF_ERROR(EndRun());
    return PassToken(token);
  }

 private:
  absl::Status EndRun() {
    if (run_.empty()) return absl::OkStatus();
    const std::string run = std::exchange(run_, std::string());
    if (!FindInvalidUtf8(run)) return PassToken(run);
    for (size_t i = 0; i < run.size(); ++i) {
      BATON_RETURN_IF_ERROR(PassToken("\xEF\xBF\xBD"));
    }
    return absl::OkStatus();
  }

  std::string run_;
};

// All tokens become one.
class FuseStep : public Step {
 public:
  using Step::Step;
  absl::Status EndToken() override { return absl::OkStatus(); }
  absl::Status Finish() override {
    BATON_RETURN_IF_ERROR(Step::EndToken());
    return Step::Finish();
  }
};

// Names back to bytes, bytes to text. A token with a character that names no byte, as added tokens
// have, is kept. The result is one token.
class ByteLevelStep : public WholeTokenStep {
 public:
  using WholeTokenStep::WholeTokenStep;
  absl::Status Finish() override {
    std::string text;
    characters_.Finish(&text);
    BATON_RETURN_IF_ERROR(PassToken(text));
    return Step::Finish();
  }

 protected:
  absl::Status Token(absl::string_view token) override {
    bytes_.clear();
    if (!AppendNamedBytes(token, &bytes_)) bytes_.assign(token.data(), token.size());
    std::string text;
    characters_.Append(bytes_, &text);
    return next().Text(text);
  }

 private:
  std::string bytes_;
  LossyUtf8Decoder characters_;
};

// Takes up to `start` times `content` from the front of each token and up to `stop` times from its
// end. What might be such an end is held back.
class StripStep : public Step {
 public:
  StripStep(const StripChars& strip, bool inside_token, Next next)
      : Step(std::move(next)), strip_(strip), to_cut_(inside_token ? 0 : strip.start) {}

  absl::Status Text(absl::string_view text) override {
    while (to_cut_ > 0 && absl::ConsumePrefix(&text, strip_.content)) --to_cut_;
    if (text.empty()) return absl::OkStatus();
    to_cut_ = 0;
    return PassAllButEnd(text);
  }

  absl::Status EndToken() override {
    held_ = 0;
    to_cut_ = strip_.start;
    return Step::EndToken();
  }

 private:
  absl::Status PassAllButEnd(absl::string_view text) {
    size_t at_end = 0;
    absl::string_view front = text;
    while (at_end < strip_.stop && absl::ConsumeSuffix(&front, strip_.content)) ++at_end;
    // Held characters stay at the end only if nothing else has come.
    const size_t all_held = front.empty() ? held_ + at_end : held_;
    const size_t keep = front.empty() ? std::min(all_held, strip_.stop) : 0;
    for (size_t i = keep; i < all_held; ++i) BATON_RETURN_IF_ERROR(Step::Text(strip_.content));
    held_ = front.empty() ? keep : at_end;
    return front.empty() ? absl::OkStatus() : Step::Text(front);
  }

  const StripChars& strip_;
  size_t to_cut_;    // still to take from the front of this token
  size_t held_ = 0;  // characters `content` that may be this token's end
};

// The replacement is a space, but in the first token it is nothing.
class MetaspaceStep : public Step {
 public:
  MetaspaceStep(const DecodeMetaspace& metaspace, bool in_first_token, Next next)
      : Step(std::move(next)),
        metaspace_(metaspace),
        drop_(metaspace.drop_first && in_first_token) {}

  absl::Status Text(absl::string_view text) override {
    return Step::Text(absl::StrReplaceAll(text, {{metaspace_.replacement, drop_ ? "" : " "}}));
  }
  absl::Status EndToken() override {
    drop_ = false;
    return Step::EndToken();
  }

 private:
  const DecodeMetaspace& metaspace_;
  bool drop_;
};

struct MakeStep {
  TextPosition position;
  bool fused;  // a step before this one makes all tokens one
  Next next;

  Next operator()(const Replace& replace) {
    return std::make_unique<ReplaceStep>(replace, std::move(next));
  }
  Next operator()(const DecodeByteLevel&) {
    return std::make_unique<ByteLevelStep>(std::move(next));
  }
  Next operator()(const DecodeByteFallback&) {
    return std::make_unique<ByteFallbackStep>(std::move(next));
  }
  Next operator()(const Fuse&) { return std::make_unique<FuseStep>(std::move(next)); }
  Next operator()(const StripChars& strip) {
    const bool inside_token = fused && position == TextPosition::kContinuation;
    return std::make_unique<StripStep>(strip, inside_token, std::move(next));
  }
  Next operator()(const DecodeMetaspace& metaspace) {
    const bool in_first_token = fused || position == TextPosition::kStart;
    return std::make_unique<MetaspaceStep>(metaspace, in_first_token, std::move(next));
  }
};

bool Fuses(const Decoder& decoder) {
  return std::holds_alternative<Fuse>(decoder) || std::holds_alternative<DecodeByteLevel>(decoder);
}

}  // namespace

std::optional<char> ByteOfToken(absl::string_view token) {
  if (token.size() != 6 || !absl::StartsWith(token, "<0x") || token[5] != '>') return std::nullopt;
  int value = 0;
  for (const char digit : token.substr(3, 2)) {
    if (!absl::ascii_isxdigit(digit)) return std::nullopt;
    value = value * 16 +
            (absl::ascii_isdigit(digit) ? digit - '0' : absl::ascii_tolower(digit) - 'a' + 10);
  }
  return static_cast<char>(value);
}

DecodeStream::DecodeStream(const Pipeline& pipeline, TextPosition position) {
  Next chain = std::make_unique<Collect>(&ready_);
  if (pipeline.decoder_absent) chain = std::make_unique<JoinBySpace>(position, std::move(chain));
  for (size_t i = pipeline.decoders.size(); i-- > 0;) {
    bool fused = false;
    for (size_t before = 0; before < i; ++before) fused |= Fuses(pipeline.decoders[before]);
    chain = std::visit(MakeStep{position, fused, std::move(chain)}, pipeline.decoders[i]);
  }
  head_ = std::move(chain);
}

DecodeStream::~DecodeStream() = default;

absl::Status DecodeStream::Push(absl::string_view token, std::string* out) {
  BATON_RETURN_IF_ERROR(head_->Text(token));
  BATON_RETURN_IF_ERROR(head_->EndToken());
  Take(out);
  return absl::OkStatus();
}

absl::Status DecodeStream::Finish(std::string* out) {
  BATON_RETURN_IF_ERROR(head_->Finish());
  Take(out);
  return absl::OkStatus();
}

void DecodeStream::Take(std::string* out) {
  out->append(ready_);
  ready_.clear();
}

}  // namespace baton::tokenizer
