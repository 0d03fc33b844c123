// Reads a JSON object or array that arrives byte by byte, and says where it stops being JSON.
#ifndef BATON_COMMON_JSON_SCANNER_H_
#define BATON_COMMON_JSON_SCANNER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "common/base/utf8.h"

namespace baton::json {

// Accepts what Parse (json.h) accepts: a whole text without a kBroken is one that Parse reads. The
// time for a byte does not depend on the bytes before it. Keys, and the last number, are kept.
//
// One thread.
class Scanner {
 public:
  enum class Event : uint8_t {
    kNone,
    kObjectBegin,
    kArrayBegin,
    kEnd,  // of an object or an array
    kStringBegin,
    kStringEnd,
    kComma,
    kBroken,  // no JSON begins so; the scanner must not be used any more
  };

  Event Push(char c);

  size_t depth() const { return levels_.size(); }  // objects and arrays that are open
  // The string that has begun or ended last is a key.
  bool is_key() const { return is_key_; }
  // The object or array is whole; only white space may follow.
  bool ended() const { return state_ == State::kEnded; }
  // Bytes of a character that is not whole yet.
  size_t partial_bytes() const { return partial_bytes_; }
  // The brackets that close what is open.
  std::string Closers() const;

 private:
  enum class State : uint8_t {
    kValue,
    kValueOrEnd,  // the beginning of an array
    kKey,
    kKeyOrEnd,  // the beginning of an object
    kColon,
    kAfterValue,
    kString,
    kEscape,
    kHex,
    kLowSurrogate,  // the backslash of the second half of a character
    kLowSurrogateU,
    kLiteral,
    kNumber,
    kEnded,
  };
  // What of a number is there.
  enum class Number : uint8_t { kMinus, kZero, kInteger, kDot, kFraction, kE, kESign, kExponent };
  struct Level {
    bool is_object;
    absl::flat_hash_set<std::string> keys;
  };

  Event BeginValue(char c);
  Event Close(char c);
  Event PushInString(char c);
  Event PushEscape(char c);
  Event PushHex(char c);
  Event PushInNumber(char c);
  Event EndString();

  std::vector<Level> levels_;
  State state_ = State::kValue;
  size_t values_ = 0;
  bool is_key_ = false;
  std::string key_;  // the open key, in quotes
  Utf8State utf8_ = Utf8State::kCharacter;
  size_t partial_bytes_ = 0;
  absl::string_view literal_;  // what is still to come of it
  Number number_state_ = Number::kMinus;
  std::string number_;
  int hex_digits_ = 0;
  uint32_t hex_ = 0;
  bool needs_low_surrogate_ = false;
};

// The object that `text` begins with, as JSON: the members and items that are whole there, up to
// where the text ends or is no JSON. "{}" if it begins no object.
std::string WholeMembers(absl::string_view text);

}  // namespace baton::json

#endif  // BATON_COMMON_JSON_SCANNER_H_
