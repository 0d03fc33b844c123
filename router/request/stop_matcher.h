// Finds stop strings in a text that arrives in pieces.
#ifndef BATON_ROUTER_REQUEST_STOP_MATCHER_H_
#define BATON_ROUTER_REQUEST_STOP_MATCHER_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace baton::router {

// The result does not depend on how the text is cut into pieces: the stop string that is complete
// first wins; of several that end together, the longest. For one thread.
class StopMatcher {
 public:
  // REQUIRES: no string is empty.
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Returns the text that can no longer become part of a stop string. On a match, that is all text
  // before it; matched() is then set, and nothing more may be appended. Without `may_match`, stop
  // strings that are complete within the piece are ordinary text.
  std::string Append(absl::string_view piece, bool may_match = true);

  // The text ends here: returns what was held back.
  std::string Flush();

  const std::optional<std::string>& matched() const { return matched_; }

 private:
  size_t HeldBytes() const;

  const std::vector<std::string> stops_;
  std::string held_;  // shorter than the longest stop string, between calls
  std::optional<std::string> matched_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_STOP_MATCHER_H_
