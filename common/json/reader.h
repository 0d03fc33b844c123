// Reads JSON text and passes on what it finds, as nlohmann's SAX parser does and several times as
// fast: a client sends its whole conversation each turn, so bodies are long, and nearly all of them
// is the inside of strings.
//
// Strict (RFC 8259), except for what nlohmann's parser takes beyond it, which this one takes too: a
// byte order mark at the start, and a NUL outside strings, which ends the text.
#ifndef BATON_COMMON_JSON_READER_H_
#define BATON_COMMON_JSON_READER_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/json/json.h"

namespace baton::json {

// What a reader finds, in the order of the text. Each returns whether to go on.
class Events {
 public:
  virtual ~Events() = default;
  virtual bool OnValue(Scalar scalar) = 0;
  virtual bool OnKey(std::string name) = 0;
  virtual bool OnBegin(bool is_array) = 0;
  virtual bool OnEnd() = 0;
};

// Serves one text.
class Reader {
 public:
  enum class Result {
    kRead,       // all of it
    kStopped,    // by the events
    kMalformed,  // events have been passed on up to the error
  };

  // `text` and `events` must outlive it.
  Reader(absl::string_view text, Events& events) : text_(text), events_(events) {}

  Result Read();

 private:
  bool ReadDocument();
  bool ReadValue();
  bool ReadLiteral(absl::string_view literal, Scalar scalar);
  bool ReadNumber();
  bool BeginMember();
  bool ReadString(std::string* out);
  bool AppendEscaped(std::string* out);
  bool ReadHex(char32_t* unit);
  bool SkipCharacter();

  void SkipSpace();
  // The next byte; 0 at the end, which a NUL stands for, too.
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool Take(char wanted);
  bool Pass(bool go_on) {
    stopped_ = !go_on;
    return go_on;
  }

  absl::string_view text_;
  Events& events_;
  size_t at_ = 0;
  bool stopped_ = false;
  std::vector<bool> open_;  // arrays (true) and objects, the innermost last
};

}  // namespace baton::json

#endif  // BATON_COMMON_JSON_READER_H_
