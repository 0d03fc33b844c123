// Copies of KV blocks on the emulated device: every byte is where it belongs, and no other changed.
#include "common/backend/cuda/kernels/blocks.h"

#include <algorithm>
#include <numeric>

#include "tests/common/backend/cuda/kernels/kernel_test.h"

namespace baton::backend::cuda {
namespace {

class CudaBlocksTest : public KernelTest {
 protected:
  void MakePool() {
    layers_ = Int(1, 4);
    chunk_ = 16 * (Int(0, 3) == 0 ? Int(1, 1200) : Int(1, 40));
    layer_stride_ = chunk_ + 16 * Int(0, 2);
    block_stride_ = layer_stride_ * layers_ + 16 * Int(0, 2);
    blocks_ = Int(2, 9);
    pool_ = RandomBytes(block_stride_ * blocks_);
  }
  std::vector<std::byte> RandomBytes(int64_t size) {
    std::vector<std::byte> bytes(static_cast<size_t>(size));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
    return bytes;
  }
  std::vector<int32_t> ShuffledBlocks() {
    std::vector<int32_t> blocks(static_cast<size_t>(blocks_));
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), random_);
    return blocks;
  }
  StageKvLaunch Stage(std::byte* pool, std::byte* staging, const std::vector<int32_t>& blocks,
                      int first_layer) const {
    StageKvLaunch launch = {};
    launch.base = pool;
    launch.block_stride_bytes = block_stride_;
    launch.layer_stride_bytes = layer_stride_;
    launch.chunk_bytes = chunk_;
    launch.first_layer = first_layer;
    launch.blocks = blocks.data();
    launch.staging = staging;
    return launch;
  }
  // body(place of a chunk in the pool, in the staging)
  template <class Body>
  void ForChunks(const std::vector<int32_t>& blocks, int first_layer, int count, const Body& body) {
    int64_t staged = 0;
    for (int layer = first_layer; layer < first_layer + count; ++layer) {
      for (const int32_t block : blocks) {
        body(block * block_stride_ + layer * layer_stride_, staged);
        staged += chunk_;
      }
    }
  }

  int layers_ = 0, blocks_ = 0;
  int64_t chunk_ = 0, layer_stride_ = 0, block_stride_ = 0;
  std::vector<std::byte> pool_;
};

TEST_F(CudaBlocksTest, CopiesWholeBlocks) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 60; ++round) {
    ChangeMachine();
    MakePool();
    // Sources may repeat.
    const std::vector<int32_t> blocks = ShuffledBlocks();
    const int targets = Int(1, blocks_ - 1);
    std::vector<BlockPair> pairs;
    for (int i = 0; i < targets; ++i) {
      pairs.push_back(
          {blocks[static_cast<size_t>(Int(targets, blocks_ - 1))], blocks[static_cast<size_t>(i)]});
    }
    std::vector<std::byte> expected = pool_;
    for (const BlockPair& pair : pairs) {
      std::memcpy(expected.data() + pair.target * block_stride_,
                  pool_.data() + pair.source * block_stride_, static_cast<size_t>(block_stride_));
    }
    DeviceArray<std::byte> pool(pool_);
    BlockMemory memory(pool.data(), blocks_, block_stride_, Coin());
    for (BlockPair& pair : pairs) pair = {memory.Number(pair.source), memory.Number(pair.target)};
    LaunchCopyBlocks({.base = memory.base(),
                      .block_stride_bytes = block_stride_,
                      .block_bytes = block_stride_,
                      .pairs = pairs.data()},
                     targets, nullptr);
    memory.CopyBack();
    ASSERT_TRUE(pool.MarginsIntact());
    ASSERT_EQ(pool.values(), expected) << "round " << round;
  }
}

TEST_F(CudaBlocksTest, GathersAndScattersChunks) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 60; ++round) {
    ChangeMachine();
    MakePool();
    std::vector<int32_t> blocks = ShuffledBlocks();
    blocks.resize(static_cast<size_t>(Int(1, blocks_)));
    const int first_layer = Int(0, layers_ - 1), count = Int(1, layers_ - first_layer);
    const int listed = static_cast<int>(blocks.size());
    const int64_t staged_bytes = chunk_ * listed * count;

    std::vector<std::byte> expected(static_cast<size_t>(staged_bytes));
    ForChunks(blocks, first_layer, count, [&](int64_t in_pool, int64_t staged) {
      std::memcpy(expected.data() + staged, pool_.data() + in_pool, static_cast<size_t>(chunk_));
    });
    DeviceArray<std::byte> pool(pool_), staging(static_cast<size_t>(staged_bytes));
    BlockMemory memory(pool.data(), blocks_, block_stride_, Coin());
    const std::vector<int32_t> numbers = memory.Numbers(blocks);
    LaunchGatherKv(Stage(memory.base(), staging.data(), numbers, first_layer), listed, count,
                   nullptr);
    memory.CopyBack();
    ASSERT_TRUE(staging.MarginsIntact());
    ASSERT_EQ(staging.values(), expected) << "round " << round;
    ASSERT_EQ(pool.values(), pool_) << "round " << round;

    const std::vector<std::byte> arrived = RandomBytes(staged_bytes);
    DeviceArray<std::byte> received(arrived);
    std::vector<std::byte> written = pool_;
    ForChunks(blocks, first_layer, count, [&](int64_t in_pool, int64_t staged) {
      std::memcpy(written.data() + in_pool, arrived.data() + staged, static_cast<size_t>(chunk_));
    });
    LaunchScatterKv(Stage(memory.base(), received.data(), numbers, first_layer), listed, count,
                    nullptr);
    memory.CopyBack();
    ASSERT_TRUE(pool.MarginsIntact());
    ASSERT_EQ(pool.values(), written) << "round " << round;
  }
}

TEST_F(CudaBlocksTest, UploadsAnyNumberOfWords) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 60; ++round) {
    ChangeMachine();
    const int64_t size = 4 * (Coin() ? Int(0, 40) : Int(0, 10'000));
    const std::vector<std::byte> bytes = RandomBytes(size);
    const DeviceArray<std::byte> pinned(bytes);
    DeviceArray<std::byte> device(static_cast<size_t>(size) + 16);
    LaunchUpload({.pinned = pinned.data(), .device = device.data(), .size_bytes = size}, nullptr);
    ASSERT_TRUE(std::equal(bytes.begin(), bytes.end(), device.data())) << size;
    for (size_t i = bytes.size(); i < device.size(); ++i) {
      ASSERT_EQ(device[i], std::byte{0xff}) << "beyond " << size;
    }
    ASSERT_TRUE(device.MarginsIntact());
  }
}

TEST_F(CudaBlocksTest, NoBlocksAreNothing) {
  LaunchCopyBlocks({}, 0, nullptr);
  LaunchGatherKv({}, 0, 1, nullptr);
  LaunchScatterKv({}, 1, 0, nullptr);
}

}  // namespace
}  // namespace baton::backend::cuda
