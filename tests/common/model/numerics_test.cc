#include "common/model/numerics.h"

#include <iostream>
#include <map>
#include <string>

#include "common/backend/cpu/isa.h"
#include "tests/common/model/model_runner.h"
#include "xxhash.h"

namespace baton::model {
namespace {

using backend::BackendOptions;

uint64_t HashOf(const Logits& logits) {
  uint64_t hash = 0;
  for (const std::vector<float>& row : logits) {
    hash = XXH3_64bits_withSeed(row.data(), row.size() * sizeof(float), hash);
  }
  return hash;
}

// Of the logits of one prompt, by checkpoint and numerics. There is none of "cpu tdpbf16ps" yet.
const std::map<std::string, std::map<std::string, uint64_t>> kHashes = {
    {"tiny-qwen2-bf16",
     {{"cpu portable", 0xa257cd2a15d08700},
      {"cpu fma", 0xfbb42de29a8119dc},
      {"cpu vdpbf16ps", 0x9ebb98e8d397c07b}}},
    {"tiny-llama-gptq8",
     {{"cpu portable", 0x8ad174c2fee27a63},
      {"cpu fma", 0x18f898c6d6afeb64},
      {"cpu vdpbf16ps", 0x957a17de57accdf5}}},
    {"tiny-qwen2-q6_k.gguf",
     {{"cpu portable", 0x51e0c90e45628159},
      {"cpu fma", 0x9497502bbeb4c89d},
      {"cpu vdpbf16ps", 0xa4b5087c7dbae08}}},
};

// A failure here means that old and new workers give different answers: raise kNumericsVersion,
// unless no release has it yet, and put the new hashes here.
TEST(NumericsTest, TheBitsAreThoseOfTheVersion) {
  for (const auto& [checkpoint, hashes] : kHashes) {
    for (const backend::Kernels* kernels : backend::UsableKernels()) {
      for (const auto compute : {BackendOptions::Compute::kF32, BackendOptions::Compute::kBF16}) {
        if (compute == BackendOptions::Compute::kBF16 && kernels->matmul_bf16 == nullptr) continue;
        auto backend = backend::MakeCpuBackend({.compute = compute, .thread_count = 2}, *kernels);
        ASSERT_TRUE(backend.ok()) << backend.status();
        const std::string numerics = (*backend)->Numerics();
        ModelRunner model(std::string(BATON_CHECKPOINT_DIR) + "/" + checkpoint, std::move(backend));
        ASSERT_TRUE(model.ok());
        const uint64_t hash = HashOf(model.Run(Prompt(100, model.config().vocab_size), 40));
        const auto expected = hashes.find(numerics);
        if (expected == hashes.end()) {
          std::cout << checkpoint << ": no hash of " << numerics << " (here 0x" << std::hex << hash
                    << ")\n";
          continue;
        }
        EXPECT_EQ(hash, expected->second)
            << std::hex << "0x" << hash << " of " << checkpoint << " with " << kernels->name;
      }
    }
  }
}

}  // namespace
}  // namespace baton::model
