#include "common/json/reader.h"

#include <simdjson.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace baton::json {
namespace {

namespace dom = simdjson::dom;

bool PassInteger(int64_t value, Events& events) {
  return events.OnValue(
      {.kind = Scalar::Kind::kInteger, .integer = value, .real = static_cast<double>(value)});
}

bool PassUnsigned(uint64_t value, Events& events) {
  if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return PassInteger(static_cast<int64_t>(value), events);
  }
  return events.OnValue({.kind = Scalar::Kind::kReal,
                         .real = static_cast<double>(value),
                         .text = absl::StrCat(value)});
}

// Passes on what nlohmann's parser finds.
class Sax : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Sax(Events& events) : events_(events) {}
  const std::string& problem() const { return problem_; }

  bool null() override { return events_.OnValue({}); }
  bool boolean(bool value) override {
    return events_.OnValue({.kind = Scalar::Kind::kBool, .boolean = value});
  }
  bool number_integer(number_integer_t value) override { return PassInteger(value, events_); }
  bool number_unsigned(number_unsigned_t value) override { return PassUnsigned(value, events_); }
  bool number_float(number_float_t value, const string_t& written) override {
    const bool is_whole = written.find_first_of(".eE") == string_t::npos;
    return events_.OnValue(
        {.kind = Scalar::Kind::kReal, .real = value, .text = is_whole ? written : ""});
  }
  bool string(string_t& value) override {
    return events_.OnValue({.kind = Scalar::Kind::kString, .text = std::move(value)});
  }
  bool binary(binary_t&) override { return false; }  // not in JSON
  bool start_object(std::size_t) override { return events_.OnBegin(/*is_array=*/false); }
  bool start_array(std::size_t) override { return events_.OnBegin(/*is_array=*/true); }
  bool end_object() override { return events_.OnEnd(); }
  bool end_array() override { return events_.OnEnd(); }
  bool key(string_t& name) override { return events_.OnKey(std::move(name)); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    problem_ = absl::StrCat("not valid JSON at byte ", position, ": ", Printable(error.what()));
    return false;
  }

 private:
  Events& events_;
  std::string problem_;
};

// False once the events stop. simdjson bounds the depth.
bool Pass(const dom::element& element, Events& events) {
  switch (element.type()) {
    case dom::element_type::ARRAY:
      if (!events.OnBegin(/*is_array=*/true)) return false;
      for (const dom::element item : dom::array(element)) {
        if (!Pass(item, events)) return false;
      }
      return events.OnEnd();
    case dom::element_type::OBJECT:
      if (!events.OnBegin(/*is_array=*/false)) return false;
      for (const dom::key_value_pair member : dom::object(element)) {
        if (!events.OnKey(std::string(member.key)) || !Pass(member.value, events)) return false;
      }
      return events.OnEnd();
    case dom::element_type::STRING:
      return events.OnValue(
          {.kind = Scalar::Kind::kString, .text = std::string(std::string_view(element))});
    case dom::element_type::INT64:
      return PassInteger(int64_t(element), events);
    case dom::element_type::UINT64:
      return PassUnsigned(uint64_t(element), events);
    case dom::element_type::DOUBLE:
      return events.OnValue({.kind = Scalar::Kind::kReal, .real = double(element)});
    case dom::element_type::BOOL:
      return events.OnValue({.kind = Scalar::Kind::kBool, .boolean = bool(element)});
    case dom::element_type::NULL_VALUE:
      return events.OnValue({});
  }
  return false;
}

}  // namespace

ReadResult Read(absl::string_view text, Events& events, std::string* problem) {
  if (text.size() <= kMostAtOnce) {
    dom::parser parser;
    dom::element document;
    if (parser.parse(text.data(), text.size()).get(document) == simdjson::SUCCESS) {
      return Pass(document, events) ? ReadResult::kRead : ReadResult::kStopped;
    }
    // Too deep, a number beyond 64 bits, or malformed: the other parser reads it, or says what is
    // wrong.
  }
  Sax sax(events);
  if (nlohmann::json::sax_parse(text.begin(), text.end(), &sax)) return ReadResult::kRead;
  if (sax.problem().empty()) return ReadResult::kStopped;
  *problem = sax.problem();
  return ReadResult::kMalformed;
}

}  // namespace baton::json
