// The rows of architecture.cc's table.
#ifndef BATON_COMMON_MODEL_ARCHITECTURES_LIST_H_
#define BATON_COMMON_MODEL_ARCHITECTURES_LIST_H_

#include "common/model/architecture.h"

namespace baton::model {

extern const Architecture kDeepseekV2, kExaone4, kGemma2, kGemma3, kGemma4, kGlm4MoeLite, kGptOss,
    kGranite, kGraniteHybrid, kLfm2, kLfm2Moe, kLlama, kMinistral3, kMistral, kMixtral, kOlmo2,
    kOlmo3, kNemotronH, kOlmoe, kPhi3, kQwen2, kQwen3, kQwen35, kQwen35Moe, kQwen3Moe, kQwen3Next,
    kSeedOss, kSmolLm3;

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_ARCHITECTURES_LIST_H_
