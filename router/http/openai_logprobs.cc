#include "router/http/openai_logprobs.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"

namespace baton::router {
namespace {

// Names a token without whole characters as OpenAI's completions do; each list of bytes has its own
// name.
std::string NameOfBytes(absl::string_view bytes) {
  std::string name = "bytes:";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (absl::ascii_isprint(byte) && c != '\\') {
      name.push_back(c);
    } else {
      absl::StrAppend(&name, "\\x", absl::Hex(byte, absl::kZeroPad2));
    }
  }
  return name;
}

void Append(const nlohmann::ordered_json& element, std::string* list) {
  if (!list->empty()) list->push_back(',');
  // A token's text may not be what the writer takes for UTF-8.
  list->append(element.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::string NameOfId(int32_t id) { return absl::StrCat("token_id:", id); }

// Where the tokens of a prompt begin; `hides(i)`: the i-th is not in its text.
template <class Hides>
std::vector<int64_t> Offsets(const tokenizer::Tokenizer& tokenizer, absl::Span<const int32_t> ids,
                             Hides hides) {
  std::vector<int64_t> offsets;
  tokenizer::TokenPositions positions(tokenizer, tokenizer::TextPosition::kStart);
  for (size_t i = 0; i < ids.size(); ++i) positions.Append(ids[i], hides(i), &offsets);
  positions.Finish(&offsets);
  return offsets;
}

}  // namespace

EchoedPrompt EchoIds(const tokenizer::Tokenizer& tokenizer, absl::Span<const int32_t> ids,
                     bool logprobs) {
  EchoedPrompt prompt;
  // Ids that are no tokens are refused with the request.
  prompt.text = tokenizer.Decode(ids, /*skip_special_tokens=*/true).value_or("");
  if (!logprobs || ids.empty()) return prompt;
  prompt.first_token = ids[0];
  prompt.offsets = Offsets(tokenizer, ids, [&](size_t i) { return tokenizer.IsSkipped(ids[i]); });
  return prompt;
}

EchoedPrompt EchoText(const tokenizer::Tokenizer& tokenizer, const std::string& text,
                      absl::Span<const int32_t> ids, bool add_special_tokens) {
  EchoedPrompt prompt;
  prompt.text = text;
  if (ids.empty()) return prompt;
  const auto added = add_special_tokens ? tokenizer.added_special_tokens()
                                        : tokenizer::Tokenizer::AddedTokenCounts();
  const auto begin = static_cast<size_t>(added.before);
  const size_t end = ids.size() - static_cast<size_t>(added.after);
  prompt.text = tokenizer.Decode(ids.subspan(begin, end - begin), /*skip_special_tokens=*/false)
                    .value_or(text);
  prompt.first_token = ids[0];
  prompt.offsets = Offsets(tokenizer, ids, [&](size_t i) { return i < begin || i >= end; });
  return prompt;
}

OpenAiLogprobs::OpenAiLogprobs(const tokenizer::Tokenizer& tokenizer, const ShownTokens& shown,
                               bool chat)
    : tokenizer_(tokenizer),
      shown_(shown),
      chat_(chat),
      positions_(tokenizer, tokenizer::TextPosition::kContinuation) {}

std::string OpenAiLogprobs::Name(int32_t id) const {
  const std::optional<std::string> bytes = tokenizer_.BytesOf(id);
  if (!bytes) return NameOfId(id);
  return IsUtf8(*bytes) ? *bytes : NameOfBytes(*bytes);
}

void OpenAiLogprobs::AddPrompt(const EchoedPrompt& prompt, const Tokens& tokens) {
  prompt_characters_ = CountCharacters(prompt.text);
  const auto offset = [&](int token) {
    const auto at = static_cast<size_t>(token);
    return at < prompt.offsets.size() ? prompt.offsets[at] : prompt_characters_;
  };
  if (prompt.first_token) AddListed(Name(*prompt.first_token), nullptr, nullptr, offset(0));
  for (int i = 0; i < tokens.size(); ++i) {
    AddListed(Name(tokens[i].token_id()), tokens[i].logprob(), TopOfCompletion(tokens[i]),
              offset(i + 1));
  }
}

void OpenAiLogprobs::Add(const v1::GenerateResponse& delta) {
  for (const v1::TokenLogprobs& token : delta.logprobs()) {
    waiting_.push_back(token);
    positions_.Append(token.token_id(), shown_.Hides(token.token_id()), &known_positions_);
  }
  characters_ += CountCharacters(delta.text());
  const bool ends = delta.finish_reason() != v1::FINISH_REASON_UNSPECIFIED;
  if (ends) positions_.Finish(&known_positions_);
  size_t taken = 0;
  while (taken < known_positions_.size() &&
         IsInText(waiting_.front().token_id(), known_positions_[taken])) {
    AddEntry(waiting_.front(), prompt_characters_ + known_positions_[taken++]);
    waiting_.pop_front();
  }
  known_positions_.erase(known_positions_.begin(),
                         known_positions_.begin() + static_cast<ptrdiff_t>(taken));
  if (!ends) return;
  // The rest is what a stop has cut off.
  waiting_.clear();
  known_positions_.clear();
}

// A token without text is there if all text before it is.
bool OpenAiLogprobs::IsInText(int32_t id, int64_t begin) const {
  const bool has_text = !shown_.Hides(id) && !tokenizer_.BytesOf(id).value_or("").empty();
  return has_text ? begin < characters_ : begin <= characters_;
}

void OpenAiLogprobs::AddEntry(const v1::TokenLogprobs& token, int64_t begin) {
  if (!chat_) {
    return AddListed(Name(token.token_id()), token.logprob(), TopOfCompletion(token), begin);
  }
  Json top = Json::array();
  for (const v1::TokenLogprob& one : token.top()) {
    top.push_back(ChatEntry(one.token_id(), one.logprob()));
  }
  Json entry = ChatEntry(token.token_id(), token.logprob());
  entry["top_logprobs"] = std::move(top);
  Append(entry, &content_);
  ++entries_;
}

void OpenAiLogprobs::AddListed(const std::string& name, const Json& logprob, const Json& top,
                               int64_t offset) {
  Append(name, &tokens_);
  Append(logprob, &token_logprobs_);
  Append(top, &top_logprobs_);
  Append(offset, &text_offset_);
  ++entries_;
}

// Bytes are those in the text: null for a token that leaves none there.
OpenAiLogprobs::Json OpenAiLogprobs::ChatEntry(int32_t id, float logprob) const {
  Json bytes = nullptr;
  if (const auto text = tokenizer_.BytesOf(id); text && !shown_.Hides(id)) {
    bytes = Json::array();
    for (const char c : *text) bytes.push_back(static_cast<unsigned char>(c));
  }
  return {{"token", Name(id)}, {"logprob", logprob}, {"bytes", std::move(bytes)}};
}

// The most probable tokens, and the text's own token if it is not among them. A name is a key: of
// tokens with one name, the text's own or else the most probable one has it, and the others are
// named by their ids.
OpenAiLogprobs::Json OpenAiLogprobs::TopOfCompletion(const v1::TokenLogprobs& token) const {
  Json top = Json::object();
  const auto add = [&](std::string name, float logprob) {
    while (top.contains(name)) name += "'";  // a token whose text looks like the name of an id
    top[name] = logprob;
  };
  const std::string own_name = Name(token.token_id());
  bool has_own = false;
  for (const v1::TokenLogprob& one : token.top()) {
    std::string name = Name(one.token_id());
    if (one.token_id() == token.token_id()) {
      has_own = true;
    } else if (name == own_name || top.contains(name)) {
      name = NameOfId(one.token_id());
    }
    add(std::move(name), one.logprob());
  }
  if (!has_own) add(own_name, token.logprob());
  return top;
}

std::string OpenAiLogprobs::TakeEntries() {
  entries_ = 0;
  return std::exchange(content_, {});
}

std::string OpenAiLogprobs::Take() {
  entries_ = 0;
  const auto take = [](std::string& list) { return std::exchange(list, {}); };
  if (chat_) return absl::StrCat(R"({"content":[)", take(content_), R"(],"refusal":null})");
  return absl::StrCat(R"({"tokens":[)", take(tokens_), R"(],"token_logprobs":[)",
                      take(token_logprobs_), R"(],"top_logprobs":[)", take(top_logprobs_),
                      R"(],"text_offset":[)", take(text_offset_), "]}");
}

}  // namespace baton::router
