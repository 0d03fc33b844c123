// Reads JSON text with nlohmann's parser, or with simdjson, which finds the same and is several
// times as fast: a client sends its whole conversation each turn.
//
// It takes what nlohmann's parser takes: RFC 8259, but a byte order mark may stand at the start,
// and a NUL outside strings ends the text. Whole numbers beyond 64 bits are doubles with their
// digits.
#ifndef BATON_COMMON_JSON_READER_H_
#define BATON_COMMON_JSON_READER_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "common/json/json.h"

namespace baton::json {

// What is found, in the order of the text. Each returns whether to go on.
class Events {
 public:
  virtual ~Events() = default;
  virtual bool OnValue(Scalar scalar) = 0;
  virtual bool OnKey(std::string name) = 0;
  virtual bool OnBegin(bool is_array) = 0;
  virtual bool OnEnd() = 0;
};

enum class ReadResult {
  kRead,       // all of it
  kStopped,    // by the events
  kMalformed,  // events may have been passed on up to the error
};

// simdjson takes memory of a multiple of the text's size, so longer texts are read by nlohmann's
// parser, which takes none.
inline constexpr size_t kMostAtOnce = size_t{1} << 20;

// `problem`: set if the text is malformed.
ReadResult Read(absl::string_view text, Events& events, std::string* problem);

}  // namespace baton::json

#endif  // BATON_COMMON_JSON_READER_H_
