#include "common/chat/json_calls.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "common/json/json.h"
#include "common/json/scanner.h"

namespace baton::chat {
namespace {

using Event = json::Scanner::Event;

// The name of the tool that stands before its arguments; empty if there is none.
absl::string_view NameInHeader(ToolCallFormat format, absl::string_view header) {
  if (format == ToolCallFormat::kMistral) {
    header = header.substr(0, header.find("[ARGS]"));
    return absl::StripAsciiWhitespace(header.substr(0, header.find("[CALL_ID]")));
  }
  if (format == ToolCallFormat::kHarmony) {
    return header.substr(0, header.find_first_of(" \t\r\n<"));
  }
  const size_t separator = header.find(kDeepSeekSeparator);
  if (format != ToolCallFormat::kDeepSeek || separator == absl::string_view::npos) return "";
  const absl::string_view after = header.substr(separator + kDeepSeekSeparator.size());
  const size_t code = after.find("```");
  const bool is_r1 = code != absl::string_view::npos;
  return absl::StripAsciiWhitespace(is_r1 ? after.substr(0, code) : header.substr(0, separator));
}

class JsonCallReader final : public CallReader {
 public:
  explicit JsonCallReader(ToolCallFormat format) : format_(format) {}

  Result Read(absl::string_view* text, CallWriter& out) override {
    Result result = Result::kMore;
    while (!text->empty() && result == Result::kMore) {
      const char c = text->front();
      if (in_header_) {
        if (!ReadHeader(c)) return Result::kBroken;
        // The bracket that ends the header is read below.
        if (in_header_) {
          text->remove_prefix(1);
          continue;
        }
      }
      result = Push(c, out);
      if (result != Result::kBroken) text->remove_prefix(1);
    }
    WriteArguments(out);
    return result;
  }

 private:
  // False if no call begins so. Leaves the header at the bracket that opens JSON.
  bool ReadHeader(char c) {
    // Mistral's list begins the call; a bracket after a name belongs to [ARGS].
    const bool is_list = c == '[' && format_ == ToolCallFormat::kMistral &&
                         absl::StripAsciiWhitespace(header_).empty();
    if (c != '{' && !is_list) {
      const bool has_header = format_ == ToolCallFormat::kMistral ||
                              format_ == ToolCallFormat::kDeepSeek ||
                              format_ == ToolCallFormat::kHarmony;
      header_ += c;
      return header_.size() <= kMaxHeaderBytes && (has_header || absl::ascii_isspace(c));
    }
    in_header_ = false;
    const absl::string_view name = NameInHeader(format_, header_);
    if (!name.empty()) {
      name_ = std::string(name);
      arguments_depth_ = 1;
      return true;
    }
    is_list_ = is_list;
    arguments_depth_ = is_list ? 3 : 2;
    return absl::StripAsciiWhitespace(header_).empty();
  }

  Result Push(char c, CallWriter& out) {
    const size_t depth_before = scanner_.depth();
    const Event event = scanner_.Push(c);
    if (event == Event::kBroken) return Result::kBroken;
    const size_t depth = scanner_.depth();
    const size_t object_depth = arguments_depth_ - 1;
    if (event == Event::kObjectBegin && depth == arguments_depth_) {
      if (!BeginArguments(out)) return Result::kBroken;
    } else if (event == Event::kObjectBegin && depth == object_depth) {
      in_call_ = true;
    } else if (is_list_ && depth_before == 1 && !absl::ascii_isspace(c) && event != Event::kComma &&
               event != Event::kEnd) {
      return Result::kBroken;  // an item that is no object
    } else if (event == Event::kStringBegin && depth == object_depth) {
      keeps_string_ = scanner_.is_key() || key_ == "name";
    }
    if (keeps_string_) string_ += c;
    if (arguments_ != nullptr) *arguments_ += c;
    if (event == Event::kStringEnd && keeps_string_) EndString();
    if (event != Event::kEnd) return Result::kMore;
    if (depth + 1 == arguments_depth_ && arguments_ != nullptr) {
      has_arguments_ = arguments_ == &piece_;
      arguments_ = nullptr;
      if (depth > 0) return Result::kMore;
    }
    if (depth + 1 == object_depth) return EndObject(out);
    if (depth > 0) return Result::kMore;
    // A list has had calls, or is none.
    if (is_list_) return calls_ > 0 ? Result::kEnd : Result::kBroken;
    return EndCall(Result::kEnd, out);
  }

  bool BeginArguments(CallWriter& out) {
    const bool has_key = arguments_depth_ == 1 || key_ == "arguments" || key_ == "parameters";
    if (!has_key || begun_ || (has_arguments_key_ && key_ != "arguments")) return true;
    if (name_) {
      if (!out.Begin(*name_)) return false;
      in_call_ = true;
      begun_ = true;
      arguments_ = &piece_;
    } else {
      arguments_ = key_ == "arguments" ? &early_arguments_ : &early_parameters_;
    }
    return true;
  }

  // A key, or the name.
  void EndString() {
    keeps_string_ = false;
    const absl::StatusOr<json::Value> parsed =
        json::Parse(std::exchange(string_, ""), "a tool call");
    if (!parsed.ok()) return;  // the scanner has accepted it
    if (!scanner_.is_key()) {
      name_ = parsed->scalar.text;
      return;
    }
    key_ = parsed->scalar.text;
    has_arguments_key_ = has_arguments_key_ || key_ == "arguments";
  }

  Result EndObject(CallWriter& out) {
    if (!begun_) {
      const std::string& early = has_arguments_key_ ? early_arguments_ : early_parameters_;
      if (!name_ || early.empty() || !out.Begin(*name_)) return Result::kBroken;
      piece_ = early;
    }
    name_.reset();
    key_.clear();
    has_arguments_key_ = false;
    early_arguments_.clear();
    early_parameters_.clear();
    return EndCall(is_list_ ? Result::kCallEnd : Result::kEnd, out);
  }

  Result EndCall(Result result, CallWriter& out) {
    WriteArguments(out);
    out.End();
    in_call_ = false;
    begun_ = false;
    has_arguments_ = false;
    ++calls_;
    return result;
  }

  // A part of a character waits for the rest of it.
  void WriteArguments(CallWriter& out) {
    const size_t partial = arguments_ == nullptr ? 0 : scanner_.partial_bytes();
    if (piece_.size() <= partial) return;
    const size_t size = piece_.size() - partial;
    out.Write(absl::string_view(piece_).substr(0, size));
    piece_.erase(0, size);
  }

  const ToolCallFormat format_;
  bool in_header_ = true;
  std::string header_;
  bool is_list_ = false;
  size_t arguments_depth_ = 0;  // of what is open in the arguments of a call
  json::Scanner scanner_;
  int calls_ = 0;
  // These describe the open call.
  bool begun_ = false;  // it is written
  std::optional<std::string> name_;
  bool keeps_string_ = false;
  std::string string_;  // the open key or name, in quotes
  std::string key_;
  bool has_arguments_key_ = false;
  std::string* arguments_ = nullptr;  // where the open arguments go; null elsewhere
  std::string piece_;                 // not yet written
  std::string early_arguments_;       // those before the name
  std::string early_parameters_;
};

}  // namespace

std::unique_ptr<CallReader> NewJsonCallReader(ToolCallFormat format) {
  return std::make_unique<JsonCallReader>(format);
}

}  // namespace baton::chat
