// What can go wrong with the frames of one KV transfer, drawn from a seed.
#ifndef BATON_TESTS_CLUSTER_FAULTS_FRAME_FAULTS_H_
#define BATON_TESTS_CLUSTER_FAULTS_FRAME_FAULTS_H_

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/cluster/faults/frame_proxy.h"

namespace baton::testing {

using Frames = std::vector<std::string>;  // serialized, in order; the last is the commit

struct FrameFaultKind {
  std::string name;
  // Whether the receiver must refuse: else it may also find the fault harmless, and answer right.
  bool must_be_refused = true;
  // Reasons that a refusal may have.
  std::vector<std::string> reasons;
  std::function<void(Frames&, std::mt19937_64&)> spoil;
};

const std::vector<FrameFaultKind>& FrameFaultKinds();

// Holds back all frames until the commit, spoils them, and sends them on.
std::unique_ptr<FrameFault> MakeFrameFault(const FrameFaultKind& kind, uint64_t seed);

}  // namespace baton::testing

#endif  // BATON_TESTS_CLUSTER_FAULTS_FRAME_FAULTS_H_
