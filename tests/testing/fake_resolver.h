// A resolver whose names a test gives.
#ifndef BATON_TESTS_TESTING_FAKE_RESOLVER_H_
#define BATON_TESTS_TESTING_FAKE_RESOLVER_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/rpc/name_lookup.h"

namespace baton::testing {

// Answers at once, unless it is told to keep its lookups.
class FakeResolver final : public Resolver {
 public:
  std::shared_ptr<const NameLookup> Resolve(const std::string& host) override {
    auto lookup = std::make_shared<NameLookup>();
    const auto found = hosts.find(host);
    lookups.push_back(lookup);
    answers.push_back(found == hosts.end() ? HostAddresses(absl::NotFoundError("no such name"))
                                           : found->second);
    if (!keep) lookup->Answer(answers.back());
    return lookup;
  }
  std::map<std::string, HostAddresses> hosts;
  bool keep = false;
  std::vector<std::shared_ptr<NameLookup>> lookups;
  std::vector<HostAddresses> answers;  // to them
};

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_FAKE_RESOLVER_H_
