#include "cli/chat_session.h"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/generate.h"
#include "common/base/exit_code.h"
#include "common/base/shutdown_signal.h"
#include "common/base/status_macros.h"

namespace baton::cli {
namespace {

constexpr size_t kMaxConversationBytes = size_t{16} << 20;  // of a file
constexpr char kHelp[] =
    R"(/system TEXT        set the system prompt; without TEXT: none
/set NAME VALUE     set a parameter, such as /set temperature 0.7; VALUE "default": the model's
/set                show the parameters
/save FILE          write the conversation as JSON
/load FILE          continue the conversation of a file
/clear              start a new conversation; system prompt and parameters stay
/model [NAME]       show the model that is served, or ask for another
/help               show this
/exit               leave, as Ctrl-D does
A line that ends in \ continues on the next one. """ begins and ends a text of several lines.
A message that begins with / is written //. Ctrl-C cancels an answer.
)";

// The parameters of /set.
using Field =
    std::variant<std::optional<float>*, std::optional<int32_t>*, std::optional<uint64_t>*>;
std::vector<std::pair<const char*, Field>> FieldsOf(client::GenerateRequest& request) {
  client::Sampling& sampling = request.sampling;
  return {{"temperature", &sampling.temperature},
          {"top_p", &sampling.top_p},
          {"top_k", &sampling.top_k},
          {"min_p", &sampling.min_p},
          {"seed", &sampling.seed},
          {"repetition_penalty", &sampling.repetition_penalty},
          {"frequency_penalty", &sampling.frequency_penalty},
          {"presence_penalty", &sampling.presence_penalty},
          {"max_tokens", &request.max_tokens},
          {"min_tokens", &request.min_tokens}};
}

bool Parse(absl::string_view text, float* value) { return absl::SimpleAtof(text, value); }
template <class Integer>
bool Parse(absl::string_view text, Integer* value) {
  return absl::SimpleAtoi(text, value);
}

// "[12 tokens, 16 of 40 prompt tokens cached, first token after 83 ms, 41.2 tokens/s]"
std::string AnswerFigures(const client::Completion& answer) {
  const client::Usage& usage = answer.usage;
  const client::Timings& timings = answer.timings;
  std::string line = absl::StrFormat(
      "[%d tokens, %d of %d prompt tokens cached, first token after %.0f ms",
      usage.generated_tokens, usage.cached_prompt_tokens, usage.prompt_tokens, timings.ttft_ms);
  const double later_s = (timings.kv_transfer_ms + timings.decode_ms) / 1000;
  if (usage.generated_tokens > 1 && later_s > 0) {
    absl::StrAppendFormat(&line, ", %.1f tokens/s", (usage.generated_tokens - 1) / later_s);
  }
  if (usage.draft_tokens > 0) {
    absl::StrAppendFormat(&line, ", %d of %d drafts accepted", usage.accepted_draft_tokens,
                          usage.draft_tokens);
  }
  return line + "]";
}

}  // namespace

std::string ForTerminal(absl::string_view text) {
  std::string shown;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const unsigned char next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {  // U+0080 to U+009F
      ++i;
    } else if (byte >= 0x20 && byte != 0x7F) {
      shown += text[i];
    } else if (byte == '\n' || byte == '\t') {
      shown += text[i];
    } else if (byte != '\r') {
      shown += {'^', static_cast<char>(byte ^ 0x40)};
    }
  }
  return shown;
}

std::string ConversationJson(const std::vector<client::ChatMessage>& messages) {
  auto array = nlohmann::ordered_json::array();
  for (const client::ChatMessage& message : messages) {
    array.push_back({{"role", message.role}, {"content", message.content}});
  }
  return array.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

absl::StatusOr<std::vector<client::ChatMessage>> ParseConversation(const std::string& json) {
  const auto array = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!array.is_array()) return absl::InvalidArgumentError("expected a JSON array of messages");
  std::vector<client::ChatMessage> messages;
  for (const auto& item : array) {
    const auto text = [&item](const char* key) -> const std::string* {
      const auto found = item.is_object() ? item.find(key) : item.end();
      return found == item.end() ? nullptr : found->get_ptr<const std::string*>();
    };
    const std::string* role = text("role");
    const std::string* content = text("content");
    if (role == nullptr || content == nullptr || item.size() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("message ", messages.size(),
                       ": expected an object of the texts \"role\" and \"content\""));
    }
    messages.push_back({*role, *content});
  }
  return messages;
}

ChatSession::ChatSession(client::Client& client, client::GenerateRequest request,
                         std::string system, Io io)
    : client_(client), request_(std::move(request)), system_(std::move(system)), io_(io) {}

int ChatSession::Run() {
  while (!leaving_) {
    const Entry entry = ReadEntry(io_.lines);
    switch (entry.line.kind) {
      case InputLine::Kind::kEnd:
        if (io_.terminal) io_.out << std::endl;
        return kExitOk;
      case InputLine::Kind::kSignal:
        return kExitInterrupted;
      case InputLine::Kind::kCancelled:
        continue;
      case InputLine::Kind::kText:
        break;
    }
    if (absl::StripAsciiWhitespace(entry.line.text).empty()) continue;
    const absl::Status status = Handle(entry);
    if (status.ok()) continue;
    io_.err << "baton chat: " << Describe(status, ArgumentStyle::kParameter) << std::endl;
    if (!io_.terminal) return ExitCode(status);
  }
  return kExitOk;
}

absl::Status ChatSession::Handle(const Entry& entry) {
  absl::string_view text = entry.line.text;
  if (entry.literal || !absl::ConsumePrefix(&text, "/")) return Send(entry.line.text);
  return absl::StartsWith(text, "/") ? Send(std::string(text)) : Command(text);
}

std::vector<client::ChatMessage> ChatSession::Conversation() const {
  std::vector<client::ChatMessage> messages;
  if (!system_.empty()) messages.push_back({"system", system_});
  messages.insert(messages.end(), turns_.begin(), turns_.end());
  return messages;
}

// A turn counts if it has an answer, whole or cancelled by the user. After any other end the
// message can be sent again.
absl::Status ChatSession::Send(const std::string& text) {
  client::GenerateRequest request = request_;
  request.messages = Conversation();
  request.messages.push_back({"user", text});
  const auto stream = client_.Generate(request);
  {
    ShutdownWatch ctrl_c([&stream] { stream->Cancel(); });
    for (const client::Delta& delta : *stream) {
      io_.out << (io_.terminal ? ForTerminal(delta.text) : delta.text) << std::flush;
    }
  }
  const absl::Status& status = stream->status();
  const client::Completion& answer = stream->completion();
  const bool cancelled = absl::IsCancelled(status);
  if (status.ok() || !answer.text().empty()) io_.out << std::endl;
  if (status.ok() || (cancelled && !answer.text().empty())) {
    turns_.push_back({"user", text});
    turns_.push_back({"assistant", answer.text()});
  }
  if (!io_.terminal) return status;
  if (status.ok()) io_.out << AnswerFigures(answer) << std::endl;
  if (!cancelled) return status;
  io_.out << "[cancelled" << (answer.text().empty() ? ": the message is dropped]" : "]")
          << std::endl;
  return absl::OkStatus();
}

absl::Status ChatSession::Command(absl::string_view line) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(line, absl::MaxSplits(absl::ByAnyChar(" \t\n"), 1));
  const absl::string_view name = parts.first;
  const std::string argument(absl::StripAsciiWhitespace(parts.second));
  if (name == "system") {
    system_ = argument;
  } else if (name == "set") {
    return Set(argument);
  } else if (name == "save") {
    return Save(argument);
  } else if (name == "load") {
    return Load(argument);
  } else if (name == "clear") {
    turns_.clear();
  } else if (name == "model") {
    return ShowModel(argument);
  } else if (name == "help") {
    io_.out << kHelp << std::flush;
  } else if (name == "exit" || name == "quit") {
    leaving_ = true;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no command /", ForTerminal(name), "; /help lists them"));
  }
  return absl::OkStatus();
}

absl::Status ChatSession::Set(absl::string_view arguments) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(arguments, absl::ByAnyChar(" \t=\n"), absl::SkipEmpty());
  const auto fields = FieldsOf(request_);
  if (words.empty()) {
    for (const auto& [name, field] : fields) {
      io_.out << name << " "
              << std::visit(
                     [](const auto* value) {
                       return value->has_value() ? absl::StrCat(**value) : std::string("default");
                     },
                     field)
              << "\n";
    }
    io_.out << std::flush;
    return absl::OkStatus();
  }
  std::vector<const char*> names;
  for (const auto& [name, field] : fields) {
    names.push_back(name);
    if (name != words[0] || words.size() != 2) continue;
    const bool valid = std::visit(
        [&words](auto* value) {
          if (words[1] == "default") {
            value->reset();
            return true;
          }
          typename std::decay_t<decltype(*value)>::value_type parsed;
          if (!Parse(words[1], &parsed)) return false;
          *value = parsed;
          return true;
        },
        field);
    if (valid) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": \"", ForTerminal(words[1]), "\" is not a value of it"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("expected /set NAME VALUE; names: ", absl::StrJoin(names, ", ")));
}

absl::Status ChatSession::Save(const std::string& file) const {
  if (file.empty()) return absl::InvalidArgumentError("expected /save FILE");
  std::ofstream out(file);
  out << ConversationJson(Conversation()) << std::flush;
  if (!out.good()) return absl::UnknownError(absl::StrCat("cannot write ", file));
  return absl::OkStatus();
}

absl::Status ChatSession::Load(const std::string& file) {
  if (file.empty()) return absl::InvalidArgumentError("expected /load FILE");
  std::ifstream in(file);
  std::string text;
  if (in.good()) {
    text.resize(kMaxConversationBytes + 1);
    in.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(in.gcount()));
  }
  if (in.bad() || !in.eof()) {
    return absl::NotFoundError(absl::StrCat("cannot read ", file, ", or it has more than 16 MiB"));
  }
  auto messages = ParseConversation(text);
  if (!messages.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", messages.status().message()));
  }
  system_.clear();
  if (!messages->empty() && messages->front().role == "system") {
    system_ = std::move(messages->front().content);
    messages->erase(messages->begin());
  }
  turns_ = *std::move(messages);
  return absl::OkStatus();
}

absl::Status ChatSession::ShowModel(absl::string_view name) {
  if (!name.empty()) {
    request_.model = std::string(name);
    return absl::OkStatus();
  }
  std::vector<client::Model> models;
  BATON_ASSIGN_OR_RETURN(models, client_.ListModels());
  for (const client::Model& model : models) {
    io_.out << model.id << ", context of " << model.max_model_len << " tokens" << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace baton::cli
