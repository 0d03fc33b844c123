// The version of what a model's logits are computed with.
#ifndef BATON_COMMON_MODEL_NUMERICS_H_
#define BATON_COMMON_MODEL_NUMERICS_H_

namespace baton::model {

// Raised by a change that moves any bit of a logit on any device, so that old and new workers
// refuse each other: no answer comes from both. numerics_test.cc notices such changes on CPUs.
inline constexpr int kNumericsVersion = 2;

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_NUMERICS_H_
