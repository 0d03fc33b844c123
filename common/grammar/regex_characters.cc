#include "common/grammar/regex_characters.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/utf8.h"

namespace baton::grammar {
namespace {

// Takes a character, escaped or not.
uint32_t TakeCharacter(absl::string_view* rest) {
  BATON_CHECK(!rest->empty()) << "a regular expression that is not in the normal form";
  if (!absl::ConsumePrefix(rest, "\\")) {
    const uint32_t character = FirstChar(*rest);
    rest->remove_prefix(Utf8CharBytes(rest->front()));
    return character;
  }
  if (absl::ConsumePrefix(rest, "n")) return '\n';
  if (absl::ConsumePrefix(rest, "r")) return '\r';
  if (!absl::ConsumePrefix(rest, "u")) return TakeCharacter(rest);
  uint32_t character = 0;
  BATON_CHECK(absl::SimpleHexAtoi(rest->substr(0, 4), &character));
  rest->remove_prefix(4);
  return character;
}

// Takes a class without its first bracket.
CharacterSet TakeClass(absl::string_view* rest) {
  const bool negated = absl::ConsumePrefix(rest, "^");
  CharacterSet members;
  while (!absl::ConsumePrefix(rest, "]")) {
    const uint32_t first = TakeCharacter(rest);
    const uint32_t last = absl::ConsumePrefix(rest, "-") ? TakeCharacter(rest) : first;
    members.Add({first, last});
  }
  return negated ? members.Complement() : members;
}

}  // namespace

CharacterSet CharactersOf(absl::string_view regex) {
  CharacterSet characters;
  while (!regex.empty()) {
    if (absl::ConsumePrefix(&regex, "[")) {
      characters.Add(TakeClass(&regex));
    } else if (absl::ConsumePrefix(&regex, "{")) {
      regex.remove_prefix(regex.find('}') + 1);
    } else if (absl::StrContains("()|*+", regex.front())) {
      regex.remove_prefix(1);
    } else {
      const uint32_t character = TakeCharacter(&regex);
      characters.Add({character, character});
    }
  }
  return characters;
}

}  // namespace baton::grammar
