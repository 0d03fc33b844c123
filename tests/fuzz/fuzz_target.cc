#include "tests/fuzz/fuzz_target.h"

#include <fstream>
#include <iterator>

#include "common/base/check.h"

namespace baton::fuzz {

std::vector<FuzzTarget> Targets() {
  std::vector<FuzzTarget> targets = FileTargets();
  for (std::vector<FuzzTarget> more : {MessageTargets(), HttpTargets(), GrammarTargets()}) {
    for (FuzzTarget& target : more) targets.push_back(std::move(target));
  }
  return targets;
}

std::vector<std::string> ReadCorpus(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  std::vector<std::string> inputs;
  for (size_t at = 0; at < bytes.size();) {
    BATON_CHECK(bytes.size() - at >= 4) << path;
    size_t length = 0;
    for (size_t i = 0; i < 4; ++i) {
      length |= static_cast<size_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
    }
    at += 4;
    BATON_CHECK(bytes.size() - at >= length) << path;
    inputs.push_back(bytes.substr(at, length));
    at += length;
  }
  return inputs;
}

}  // namespace baton::fuzz
