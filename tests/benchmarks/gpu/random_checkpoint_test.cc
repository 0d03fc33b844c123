#include "benchmarks/gpu/random_checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "benchmarks/gpu/shapes.h"
#include "common/engine/engine_shape.h"
#include "common/model/checkpoint.h"
#include "common/model/model_config.h"
#include "common/model/model_costs.h"

namespace baton::gpu_bench {
namespace {

TEST(RandomCheckpointTest, IsAModelAndGoesAway) {
  for (const ModelShape& shape : Grid::Tiny().models) {
    std::string folder;
    {
      const auto checkpoint = RandomCheckpoint::Write(shape, ::testing::TempDir());
      ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
      folder = (*checkpoint)->folder();
      const auto config = model::LoadModelConfig(folder);
      ASSERT_TRUE(config.ok()) << config.status();
      const auto& body = config->layers[0].sublayers[1].body;
      const auto* experts = std::get_if<model::ExpertsSpec>(&body);
      ASSERT_EQ(experts != nullptr, shape.experts > 0);
      const model::MlpSpec& mlp =
          experts != nullptr ? experts->expert : std::get<model::MlpSpec>(body);
      EXPECT_EQ(mlp.gate_up.quantized, shape.bits > 0);
      const auto tensors = model::Checkpoint::Open(folder);
      ASSERT_TRUE(tensors.ok()) << tensors.status();
    }
    EXPECT_FALSE(std::filesystem::exists(folder));
  }
}

TEST(RandomCheckpointTest, SaysThatAFolderCannotBeWritten) {
  const auto checkpoint = RandomCheckpoint::Write(Grid::Tiny().models[0], "/no/such/folder");
  EXPECT_EQ(checkpoint.status().code(), absl::StatusCode::kUnavailable);
}

// The published parameter counts: a wrong dimension shows.
TEST(ShapesTest, AreThoseOfQwen) {
  // Of 30,532 million parameters 8 of 48 layers have 4,984.9.
  const double millions[] = {494.0, 1543.7, 3085.9, 7615.6, 7615.6, 5607.2, 30532.1};
  const std::vector<ModelShape> models = Grid::Full(size_t{1} << 40).models;
  ASSERT_EQ(models.size(), std::size(millions));
  for (size_t i = 0; i < models.size(); ++i) {
    const auto folder = std::filesystem::path(::testing::TempDir()) / "shape";
    std::filesystem::create_directories(folder);
    std::FILE* file = std::fopen((folder / "config.json").c_str(), "w");
    ASSERT_NE(file, nullptr);
    std::fputs(ConfigJson(models[i]).c_str(), file);
    std::fclose(file);
    const auto config = model::ReadModelConfig(folder.string());
    ASSERT_TRUE(config.ok()) << config.status();
    const model::ModelCosts costs = model::CostsOf(*config);
    EXPECT_NEAR(static_cast<double>(costs.parameters()) / 1e6, millions[i], 0.2) << models[i].name;
    int64_t matrices = 0;
    for (const MatrixShape& matrix : LayerMatrices(models[i])) {
      matrices += int64_t{matrix.count} * matrix.n * matrix.k;
    }
    int64_t expected = 0;
    for (const auto& layer : costs.layers) {
      expected += models[i].experts > 0 ? layer.attention_elements : layer.matrix_elements();
    }
    EXPECT_EQ(matrices, expected) << models[i].name;
    std::filesystem::remove_all(folder);
  }
}

}  // namespace
}  // namespace baton::gpu_bench
