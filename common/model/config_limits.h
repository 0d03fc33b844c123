// Highest values that are read from a config.json: far above every known model, and low enough that
// no product of three overflows an int64.
#ifndef BATON_COMMON_MODEL_CONFIG_LIMITS_H_
#define BATON_COMMON_MODEL_CONFIG_LIMITS_H_

namespace baton::model {

inline constexpr int kMaxHidden = 1 << 17;
inline constexpr int kMaxFfn = 1 << 20;
inline constexpr int kMaxLayers = 1024;
inline constexpr int kMaxExperts = 4096;
inline constexpr int kMaxHeads = 1024;
inline constexpr int kLargestHeadDim = 512;
inline constexpr int kMaxVocab = 1 << 22;
inline constexpr int kMaxPositions = 1 << 24;

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_CONFIG_LIMITS_H_
