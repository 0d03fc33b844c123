// Reads calls of tools in one format, as their text grows.
#ifndef BATON_COMMON_CHAT_CALL_READER_H_
#define BATON_COMMON_CHAT_CALL_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "common/json/json.h"
#include "common/json/scanner.h"

namespace baton::chat {

// What may stand before the name and the arguments of a call has at most so many bytes.
inline constexpr size_t kMaxHeaderBytes = 1024;

// True if a format without quotes around names can have this one.
bool IsBareName(absl::string_view name);

// Takes the calls that a CallReader finds.
class CallWriter {
 public:
  virtual ~CallWriter() = default;
  // A call begins. False if no tool can have this name.
  virtual bool Begin(absl::string_view name) = 0;
  // The next piece of the open call's arguments: JSON, whole characters.
  virtual void Write(absl::string_view piece) = 0;
  // The open call ends, and its arguments are a whole object.
  virtual void End() = 0;
};

// Reads what follows the text that opens calls, up to where they end. One per opener; one thread.
// Each result follows from the bytes that are read, not from how the text is cut.
class CallReader {
 public:
  enum class Result : uint8_t {
    kMore,     // needs more text
    kCallEnd,  // a call has ended; another one, or the end, may follow
    kEnd,      // a call has ended, and with it what the opener has opened
    kBroken,   // what follows is no call, or not the rest of one
  };

  virtual ~CallReader() = default;
  // Reads a beginning of `text`, which follows what is read, and takes it off. What is not taken is
  // at most a part of a mark, and is the beginning of the next text.
  virtual Result Read(absl::string_view* text, CallWriter& out) = 0;
  // The answer ends, and `text` with it. True if that ends the open call, too.
  virtual bool Finish(absl::string_view text, CallWriter& out) { return false; }

  // A call has begun to be read, or to be written, and has not ended.
  bool in_call() const { return in_call_; }
  // The arguments of the open call are whole.
  bool has_arguments() const { return has_arguments_; }

 protected:
  bool in_call_ = false;
  bool has_arguments_ = false;
};

// Writes a JSON string, in pieces of whole characters.
class StringWriter {
 public:
  void Begin();
  // Both return false where the string breaks: the text is no UTF-8, or the JSON is none.
  bool Add(char c);                       // a byte of the text
  bool AddJson(absl::string_view piece);  // a part of the string as JSON has it
  bool End();
  // What is new since the last call.
  std::string Take();

 private:
  json::Scanner scanner_;
  std::string piece_;
};

// Writes the arguments of one call member by member. Of a key that comes twice the first value
// counts, as a client may have it already.
class MemberWriter {
 public:
  // Begins the call, unless it has begun. False if no tool can have this name.
  bool BeginCall(absl::string_view name, CallWriter& out);
  // REQUIRES: the call has begun.
  void BeginMember(absl::string_view key, CallWriter& out);
  void Write(absl::string_view json, CallWriter& out);
  // False if the value has no JSON.
  bool WriteValue(const json::Value& value, CallWriter& out);
  void EndCall(CallWriter& out);

 private:
  bool begun_ = false;
  bool skips_ = false;  // the member's key has come before
  absl::flat_hash_set<std::string> keys_;
};

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_CALL_READER_H_
