#include "common/kv/kv_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "common/base/error.h"

namespace baton::kv {
namespace {

using ::testing::HasSubstr;

constexpr KvDtype kAllDtypes[] = {KvDtype::kF32,  KvDtype::kBF16, KvDtype::kF16,
                                  KvDtype::kInt8, KvDtype::kInt4, KvDtype::kFp8};

KvLayout Qwen() { return KvLayout{24, 2, 64, 16, KvDtype::kBF16, 1}; }

TEST(KvLayoutTest, Bytes) {
  EXPECT_EQ(Qwen().ChunkBytes(), 2 * 2 * 16 * 64 * 2);
  EXPECT_EQ(Qwen().BlockBytes(), 24 * Qwen().ChunkBytes());
  KvLayout f32 = Qwen();
  f32.dtype = KvDtype::kF32;
  EXPECT_EQ(f32.BlockBytes(), 2 * Qwen().BlockBytes());
}

TEST(KvLayoutTest, LatentsAreStoredOnce) {
  KvLayout deepseek{27, 1, 576, 16, KvDtype::kBF16, 1};
  const uint64_t apart = deepseek.Fingerprint();
  deepseek.latent_dim = 512;
  ASSERT_TRUE(deepseek.Validate().ok());
  EXPECT_EQ(deepseek.BlockBytes(), 16 * 31104);  // DeepSeek-V2-Lite: 27 * 576 * 2 bytes a token
  EXPECT_EQ(deepseek.PageBytes(), deepseek.BlockBytes());
  EXPECT_EQ(deepseek.NeededBytes(0, 3, 3), 3 * deepseek.BlockBytes());
  EXPECT_NE(deepseek.Fingerprint(), apart);
  EXPECT_THAT(deepseek.ToString(), HasSubstr("576 with latents of 512"));
  deepseek.latent_dim = 577;
  EXPECT_EQ(ErrorField(deepseek.Validate()), "kv_layout.latent_dim");
  deepseek.latent_dim = -1;
  EXPECT_EQ(ErrorField(deepseek.Validate()), "kv_layout.latent_dim");
}

TEST(KvLayoutTest, QuantizedRowsHaveAScaleAndAZero) {
  KvLayout layout = Qwen();
  layout.dtype = KvDtype::kInt8;
  EXPECT_EQ(layout.HeadBytes(), 16 * (64 + 4));
  layout.dtype = KvDtype::kFp8;
  EXPECT_EQ(layout.HeadBytes(), 16 * (64 + 4));
  layout.dtype = KvDtype::kInt4;
  EXPECT_EQ(layout.HeadBytes(), 16 * (32 + 4));
  EXPECT_EQ(layout.BlockBytes(), 24 * 2 * 2 * 16 * (32 + 4));
}

TEST(KvLayoutTest, FourBitsNeedAnEvenHeadDim) {
  KvLayout layout = Qwen();
  layout.head_dim = 65;
  EXPECT_TRUE(layout.Validate().ok());
  layout.dtype = KvDtype::kInt8;
  EXPECT_TRUE(layout.Validate().ok());
  layout.dtype = KvDtype::kInt4;
  EXPECT_EQ(ErrorField(layout.Validate()), "kv_layout.head_dim");
}

TEST(KvLayoutTest, ACallerWithAnotherDtypeIsRefusedWithBothNamed) {
  EXPECT_TRUE(Qwen().CheckCaller(Qwen().Fingerprint()).ok());
  KvLayout other = Qwen();
  other.dtype = KvDtype::kInt8;
  const absl::Status refused = Qwen().CheckCaller(other.Fingerprint());
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(refused), "KV_LAYOUT");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("int8"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("bfloat16"));
  other.layers = 3;
  EXPECT_THAT(std::string(Qwen().CheckCaller(other.Fingerprint()).message()),
              HasSubstr("this worker has 24 layers"));
}

TEST(KvLayoutTest, LargestValidLayoutDoesNotOverflow) {
  const KvLayout largest{4096, 1024, 4096, 256, KvDtype::kF32, 1};
  ASSERT_TRUE(largest.Validate().ok());
  EXPECT_EQ(largest.ChunkBytes(), int64_t{1} << 33);
  EXPECT_EQ(largest.BlockBytes(), int64_t{1} << 45);
}

TEST(KvLayoutTest, ValidateNamesFieldValueAndRange) {
  struct Case {
    int KvLayout::*field;
    const char* name;
    std::vector<int> bad;
  };
  constexpr int kMax = std::numeric_limits<int>::max();
  constexpr int kMin = std::numeric_limits<int>::min();
  const Case cases[] = {
      {&KvLayout::layers, "kv_layout.layers", {0, -1, 4097, kMax, kMin}},
      {&KvLayout::kv_heads, "kv_layout.kv_heads", {0, -1, 1025, kMax, kMin}},
      {&KvLayout::head_dim, "kv_layout.head_dim", {0, -1, 4097, kMax, kMin}},
      {&KvLayout::block_tokens, "kv_layout.block_tokens", {0, 8, 15, 17, 24, 257, 272, -16, kMin}},
      {&KvLayout::format_version, "kv_layout.format_version", {0, 2, -1, kMax}},
  };
  EXPECT_TRUE(Qwen().Validate().ok());
  for (const Case& c : cases) {
    for (int value : c.bad) {
      KvLayout layout = Qwen();
      layout.*c.field = value;
      const absl::Status status = layout.Validate();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << layout.ToString();
      EXPECT_EQ(ErrorField(status), c.name);
      EXPECT_EQ(ErrorReason(status), "KV_LAYOUT_INVALID");
      EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(value)));
      EXPECT_THAT(std::string(status.message()), HasSubstr("expected"));
    }
  }
  for (int block_tokens = 16; block_tokens <= 256; block_tokens += 16) {
    KvLayout layout = Qwen();
    layout.block_tokens = block_tokens;
    EXPECT_TRUE(layout.Validate().ok()) << block_tokens;
  }
}

TEST(KvLayoutTest, UnknownDtypeIsRefusedAndPrintable) {
  KvLayout layout = Qwen();
  layout.dtype = static_cast<KvDtype>(9);
  EXPECT_EQ(ErrorField(layout.Validate()), "kv_layout.dtype");
  EXPECT_THAT(layout.ToString(), HasSubstr("dtype 9"));
}

// Workers of different builds compare these: do not adapt them.
TEST(KvLayoutTest, GoldenFingerprint) {
  EXPECT_EQ(Qwen().Fingerprint(), 0x2d2d8dc0aaaadbe7u);
  EXPECT_EQ((KvLayout{32, 8, 128, 32, KvDtype::kF32, 1}.Fingerprint()), 0x32061824e5bf58f1u);
  EXPECT_EQ((KvLayout{24, 2, 64, 16, KvDtype::kBF16, 1, KvDtype::kF32}.Fingerprint()),
            0x65d383871dc2a2f2u);
}

TEST(KvLayoutTest, EveryFieldEntersTheFingerprint) {
  std::set<uint64_t> fingerprints = {Qwen().Fingerprint()};
  for (auto field : {&KvLayout::layers, &KvLayout::kv_heads, &KvLayout::head_dim,
                     &KvLayout::block_tokens, &KvLayout::format_version}) {
    KvLayout layout = Qwen();
    ++(layout.*field);
    fingerprints.insert(layout.Fingerprint());
  }
  for (KvDtype dtype : kAllDtypes) {
    KvLayout layout = Qwen();
    layout.dtype = dtype;
    fingerprints.insert(layout.Fingerprint());
  }
  EXPECT_EQ(fingerprints.size(), 11u);
}

TEST(KvLayoutTest, Bfloat16OfFloat32IsNotThatOfBfloat16) {
  const KvLayout layout = Qwen();
  KvLayout other = layout;
  other.computed = KvDtype::kF32;
  EXPECT_EQ(layout.BlockBytes(), other.BlockBytes());
  EXPECT_NE(layout.Fingerprint(), other.Fingerprint());
  EXPECT_EQ(other.DtypeText(), "bfloat16 of float32");
  EXPECT_THAT(std::string(layout.CheckCaller(other.Fingerprint()).message()),
              HasSubstr("the caller has KV of bfloat16 of float32, this"));
  EXPECT_THAT(std::string(other.CheckCaller(layout.Fingerprint()).message()),
              HasSubstr("the caller has KV of bfloat16, this"));
}

TEST(KvLayoutTest, QuantizedKvIsOfOneComputation) {
  KvLayout layout = Qwen(), other = layout;
  other.computed = KvDtype::kF16;
  EXPECT_EQ(layout.Fingerprint(), other.Fingerprint());  // not rounded
  other.computed = KvDtype::kF32;
  layout.dtype = other.dtype = KvDtype::kInt8;
  EXPECT_NE(layout.Fingerprint(), other.Fingerprint());
  EXPECT_EQ(layout.DtypeText(), "int8 of bfloat16");
  EXPECT_THAT(std::string(layout.CheckCaller(other.Fingerprint()).message()),
              HasSubstr("int8 of float32"));
  other.computed = KvDtype::kInt4;
  EXPECT_EQ(ErrorField(other.Validate()), "kv_layout.computed");
}

TEST(KvLayoutTest, KvOfRoundedWeightsIsNotMixed) {
  const KvLayout layout = Qwen();
  KvLayout other = layout;
  other.weight_bits = 4;
  EXPECT_NE(layout.Fingerprint(), other.Fingerprint());
  EXPECT_THAT(std::string(layout.CheckCaller(other.Fingerprint()).message()),
              HasSubstr("the caller has KV of bfloat16 with weights of 4 bits"));
  other.dequantized = true;
  EXPECT_THAT(std::string(layout.CheckCaller(other.Fingerprint()).message()),
              HasSubstr("the caller has KV of bfloat16 with dequantised weights of 4 bits"));
  other.weight_bits = 0;
  EXPECT_THAT(std::string(layout.CheckCaller(other.Fingerprint()).message()),
              HasSubstr("the caller has KV of bfloat16 with dequantised weights, this"));
  other.dequantized = false;
  EXPECT_TRUE(layout.CheckCaller(other.Fingerprint()).ok());
}

TEST(KvLayoutTest, KvWithOtherBitsIsNotMixed) {
  KvLayout layout = Qwen(), other = layout;
  layout.numerics = "cpu vdpbf16ps 1";
  other.numerics = "cpu tdpbf16ps 1";
  EXPECT_NE(layout.Fingerprint(), Qwen().Fingerprint());
  EXPECT_NE(layout.Fingerprint(), other.Fingerprint());
  EXPECT_THAT(std::string(layout.CheckCaller(other.Fingerprint()).message()),
              HasSubstr("this worker has 24 layers, 2 kv heads of 64, 16-token blocks, bfloat16, "
                        "format 1, by cpu vdpbf16ps 1"));
}

TEST(KvLayoutTest, DtypeNamesRoundTrip) {
  for (KvDtype dtype : kAllDtypes) {
    EXPECT_EQ(ParseKvDtype(KvDtypeName(dtype)), dtype);
  }
  EXPECT_FALSE(ParseKvDtype("float64"));
  EXPECT_FALSE(ParseKvDtype(""));
}

TEST(KvLayoutTest, ToString) {
  EXPECT_EQ(Qwen().ToString(), "24 layers, 2 kv heads of 64, 16-token blocks, bfloat16, format 1");
}

// `layers` layers, of which every `period`th, the last of its period, sees all tokens.
KvLayout Windowed(int layers, int period, int window) {
  KvLayout layout;
  layout.layers = layers;
  layout.kv_heads = 4;
  layout.head_dim = 256;
  for (int layer = 0; layer < layers; ++layer) {
    layout.windows.push_back((layer + 1) % period == 0 ? 0 : window);
  }
  return layout;
}

TEST(KvLayoutTest, LayersOfOneKindShareAPage) {
  const KvPages pages = Windowed(34, 6, 1024).Pages();  // Gemma 3 4B
  EXPECT_EQ(pages.layers_per_page, 5);
  EXPECT_EQ(pages.full_tables, 1);
  EXPECT_EQ(pages.window_tables, 6) << "29 layers, and one place empty";
  EXPECT_EQ(Windowed(34, 6, 1024).Shape().window_blocks, 64);
  EXPECT_EQ(pages.places[5].table, 0);
  EXPECT_EQ(pages.places[11].slot, 1);
  EXPECT_EQ(pages.places[0].table, 1);
  EXPECT_EQ(pages.places[33].table, 6);
  std::set<std::pair<int, int>> seen;
  for (const KvPages::Place& place : pages.places) {
    EXPECT_LT(place.slot, pages.layers_per_page);
    EXPECT_TRUE(seen.insert({place.table, place.slot}).second) << "two layers in one place";
  }
  // Gemma 3 1B: pages of 4 layers would waste 2 of 26.
  EXPECT_EQ(Windowed(26, 6, 512).Pages().layers_per_page, 2);
  EXPECT_EQ(Windowed(18, 6, 512).Pages().layers_per_page, 3);    // Gemma 3 270M
  EXPECT_EQ(Windowed(62, 6, 1024).Pages().layers_per_page, 5);   // Gemma 3 27B
  EXPECT_EQ(Windowed(26, 2, 4096).Pages().layers_per_page, 13);  // Gemma 2 2B
  EXPECT_EQ(Windowed(64, 4, 4096).Pages().layers_per_page, 16);  // EXAONE 4 32B
}

TEST(KvLayoutTest, WithoutWindowsABlockIsAPage) {
  KvLayout layout = Windowed(24, 6, 512);
  layout.windows.clear();
  const KvPages pages = layout.Pages();
  EXPECT_EQ(pages.layers_per_page, 24);
  EXPECT_EQ(pages.tables(), 1);
  EXPECT_EQ(pages.places[23].slot, 23);
  EXPECT_EQ(layout.PageBytes(), layout.BlockBytes());
  EXPECT_EQ(layout.NeededBytes(2, 5, 5), 3 * layout.BlockBytes());
}

TEST(KvLayoutTest, WindowsBoundWhatIsNeeded) {
  const KvLayout layout = Windowed(4, 4, 24);  // one layer sees all; a window reaches 2 blocks
  EXPECT_EQ(layout.FirstNeededBlock(3, 10, 10), 0);
  EXPECT_EQ(layout.FirstNeededBlock(0, 10, 10), 8);
  EXPECT_EQ(layout.FirstNeededBlock(0, 1, 1), 0);
  EXPECT_EQ(layout.NeededBytes(0, 10, 10), (10 + 3 * 2) * layout.ChunkBytes());
  EXPECT_EQ(layout.NeededBytes(9, 10, 10), 4 * layout.ChunkBytes());
  EXPECT_EQ(layout.NeededBytes(10, 10, 10), 0);
}

TEST(KvLayoutTest, WindowsAreOfTheFingerprint) {
  const KvLayout layout = Windowed(4, 4, 24);
  KvLayout other = layout;
  EXPECT_EQ(other.Fingerprint(), layout.Fingerprint());
  other.windows[1] = 32;
  EXPECT_NE(other.Fingerprint(), layout.Fingerprint());
  other.windows.clear();
  EXPECT_NE(other.Fingerprint(), layout.Fingerprint());
  EXPECT_THAT(layout.ToString(), ::testing::HasSubstr("3 layers with windows of up to 24"));
}

TEST(KvLayoutTest, RefusesWindowsThatDoNotFitTheLayers) {
  KvLayout layout = Windowed(4, 4, 24);
  EXPECT_TRUE(layout.Validate().ok());
  layout.windows[0] = -1;
  EXPECT_THAT(layout.Validate().message(), ::testing::HasSubstr("windows"));
  layout.windows = {24, 24, 24};
  EXPECT_THAT(layout.Validate().message(), ::testing::HasSubstr("are 3, expected one a layer, 4"));
  layout.windows = {24, 24, 24, 24};
  EXPECT_THAT(layout.Validate().message(), ::testing::HasSubstr("expected a layer without one"));
}

// Every `period`th layer, the last one too, sees all tokens and has other heads.
KvLayout Mixed(int layers, int period, KvHeads windowed, KvHeads full, KvDtype dtype) {
  KvLayout layout = Windowed(layers, period, 512);
  layout.dtype = dtype;
  std::vector<KvHeads> heads;
  for (int layer = 0; layer < layers; ++layer) {
    heads.push_back(layout.windows[static_cast<size_t>(layer)] == 0 ? full : windowed);
  }
  layout.SetHeads(heads);
  return layout;
}

TEST(KvLayoutTest, LayersThatDifferHaveSeveralChunks) {
  // Gemma 4 E2B, whose other 20 layers store nothing.
  const KvLayout small = Mixed(15, 5, {1, 256}, {1, 512}, KvDtype::kBF16);
  ASSERT_TRUE(small.Validate().ok()) << small.Validate();
  EXPECT_EQ(small.layers, 12 + 2 * 3);
  EXPECT_EQ(small.ChunkBytes(), 2 * 256 * 16 * 2);
  EXPECT_EQ(small.Pages().layers_per_page, 6);
  EXPECT_EQ(small.Shape().full_pages, 1);
  EXPECT_EQ(small.Shape().window_pages, 2);
  // Gemma 4 31B, where the layers with a window are the larger ones.
  const KvLayout large = Mixed(60, 6, {16, 256}, {4, 512}, KvDtype::kBF16);
  EXPECT_EQ(large.layers, 50 * 2 + 10);
  EXPECT_EQ(large.ChunkBytes(), 2 * 4 * 512 * 16 * 2);
  EXPECT_EQ(large.Pages().layers_per_page, 10);
  EXPECT_EQ(large.Shape().window_pages, 10);
}

// For every type of KV: the chunks of a layer are neighbours in one page, in places of their own,
// and its heads fit in them, with at most 2 % to spare.
TEST(KvLayoutTest, ALayerLiesInItsChunks) {
  for (const KvDtype dtype : kAllDtypes) {
    for (const auto& [windowed, full] : {std::pair(KvHeads{1, 256}, KvHeads{1, 512}),
                                         {{16, 256}, {4, 512}},
                                         {{8, 256}, {2, 512}}}) {
      const KvLayout layout = Mixed(30, 6, windowed, full, dtype);
      ASSERT_TRUE(layout.Validate().ok()) << layout.Validate();
      const KvPages pages = layout.Pages();
      std::set<std::pair<int, int>> seen;
      int end = 0;
      for (int layer = 0; layer < 30; ++layer) {
        const KvLayout::Chunks chunks = layout.ChunksOf(layer);
        EXPECT_EQ(chunks.first, end);
        end = chunks.end;
        const KvPages::Place first = pages.places[static_cast<size_t>(chunks.first)];
        EXPECT_EQ(first.table < pages.full_tables, (layer + 1) % 6 == 0);
        for (int chunk = chunks.first; chunk < chunks.end; ++chunk) {
          const KvPages::Place place = pages.places[static_cast<size_t>(chunk)];
          EXPECT_EQ(place.table, first.table);
          EXPECT_EQ(place.slot, first.slot + chunk - chunks.first);
          EXPECT_LT(place.slot, pages.layers_per_page);
          EXPECT_EQ(layout.window(chunk), (layer + 1) % 6 == 0 ? 0 : 512);
          EXPECT_TRUE(seen.insert({place.table, place.slot}).second);
        }
        KvLayout alone = Qwen();
        alone.dtype = dtype;
        const KvHeads heads = (layer + 1) % 6 == 0 ? full : windowed;
        alone.kv_heads = heads.kv_heads;
        alone.head_dim = heads.head_dim;
        const int64_t room = (chunks.end - chunks.first) * layout.ChunkBytes();
        EXPECT_GE(room, alone.ChunkBytes());
        EXPECT_LE(static_cast<double>(room), 1.02 * static_cast<double>(alone.ChunkBytes()));
      }
      EXPECT_EQ(end, layout.layers);
    }
  }
}

TEST(KvLayoutTest, RefusesHeadsThatDoNotFitTheChunks) {
  const KvLayout layout = Mixed(10, 5, {1, 256}, {1, 512}, KvDtype::kBF16);
  EXPECT_THAT(layout.ToString(), HasSubstr("12 chunks of 10 layers, with kv heads of 256 to 512"));
  KvLayout other = layout;
  other.layer_heads[3].kv_heads = 2;
  EXPECT_NE(other.Fingerprint(), layout.Fingerprint());
  EXPECT_EQ(ErrorField(other.Validate()), "kv_layout.windows") << "chunk 5 is layer 4's";
  other.windows.clear();
  EXPECT_EQ(ErrorField(other.Validate()), "kv_layout.layers");
  other = layout;
  other.layer_heads[0].head_dim = 4097;
  EXPECT_EQ(ErrorField(other.Validate()), "kv_layout.layer_heads.head_dim");
  other.layer_heads[0] = {0, 256};
  EXPECT_EQ(ErrorField(other.Validate()), "kv_layout.layer_heads.kv_heads");
  other = layout;
  other.latent_dim = 128;
  EXPECT_EQ(ErrorField(other.Validate()), "kv_layout.layer_heads");
}

// Qwen3.5-9B's shape: 8 layers of attention, 24 of the gated delta rule.
KvLayout Recurrent(int recurrent_layers = 24) {
  KvLayout layout;
  layout.layers = 8;
  layout.kv_heads = 4;
  layout.head_dim = 256;
  std::vector<std::vector<StateShape>> states(
      static_cast<size_t>(recurrent_layers),
      {{.lanes = 8192, .depth = 3}, {.lanes = 32 * 128, .depth = 128}});
  layout.AddStates(states);
  return layout;
}

TEST(KvLayoutTest, AStateLiesInPiecesOfAChunksSize) {
  const KvLayout layout = Recurrent();
  ASSERT_TRUE(layout.Validate().ok()) << layout.Validate();
  EXPECT_EQ(layout.attention_layers(), 8);
  const int64_t state_bytes = int64_t{24} * 4 * (8192 * 3 + 4096 * 128);
  EXPECT_GE(layout.state_pieces() * layout.ChunkBytes(), state_bytes);
  EXPECT_LT(layout.state_pieces() * layout.ChunkBytes(), state_bytes * 1.05);
  const KvPages pages = layout.Pages();
  EXPECT_EQ(pages.layers_per_page, 8);
  EXPECT_EQ(pages.full_tables, 1);
  EXPECT_EQ(pages.window_tables, (layout.state_pieces() + 7) / 8);
  const BlockShape shape = layout.Shape();
  EXPECT_TRUE(shape.recurrent);
  EXPECT_EQ(shape.window_blocks, 1);
  EXPECT_EQ(shape.window_pages, pages.window_tables);
}

// Each unit has bytes of its own, within a page.
TEST(KvLayoutTest, UnitsOfAStateDoNotOverlap) {
  const KvLayout layout = Recurrent(3);
  const KvPages pages = layout.Pages();
  std::set<std::pair<int64_t, int64_t>> taken;  // begin and end
  ASSERT_EQ(pages.states.size(), 3u);
  for (size_t layer = 0; layer < pages.states.size(); ++layer) {
    ASSERT_EQ(pages.states[layer].size(), 2u);
    for (size_t plane = 0; plane < 2; ++plane) {
      const auto& [spot_units, spots] = pages.states[layer][plane];
      const StateShape& shape = layout.states[layer][plane];
      const int64_t unit_bytes = 16 * 4 * shape.depth, units = shape.lanes / 16;
      ASSERT_EQ(static_cast<int64_t>(spots.size()), (units + spot_units - 1) / spot_units);
      for (size_t i = 0; i < spots.size(); ++i) {
        const int64_t count =
            std::min<int64_t>(spot_units, units - static_cast<int64_t>(i) * spot_units);
        EXPECT_LT(spots[i].table, pages.window_tables);
        EXPECT_EQ(spots[i].offset % 64, 0);
        EXPECT_LE(spots[i].offset + count * unit_bytes, layout.PageBytes());
        const int64_t begin = spots[i].table * layout.PageBytes() + spots[i].offset;
        EXPECT_TRUE(taken.insert({begin, begin + count * unit_bytes}).second);
      }
    }
    // What is whole behind the layer has all of its units.
    EXPECT_LE(taken.rbegin()->second - layout.ChunkBytes() + 1,
              pages.pieces_behind[layer] * layout.ChunkBytes());
  }
  EXPECT_EQ(pages.pieces_behind.back(), layout.state_pieces());
  int64_t end = 0;
  for (const auto& [begin, after] : taken) {
    EXPECT_GE(begin, end);
    end = after;
  }
}

TEST(KvLayoutTest, AStateIsNeededBehindTheLastBlockOnly) {
  const KvLayout layout = Recurrent(1);
  EXPECT_EQ(layout.FirstNeededBlock(0, 9, 10), 0);
  EXPECT_EQ(layout.FirstNeededBlock(8, 9, 10), 9);
  EXPECT_EQ(layout.NeededBytes(0, 10, 9), (10 * 8 + layout.state_pieces()) * layout.ChunkBytes());
  EXPECT_EQ(layout.NeededBytes(9, 10, 9), layout.BlockBytes());
}

TEST(KvLayoutTest, StatesAreOfTheFingerprintAndChecked) {
  const KvLayout layout = Recurrent();
  EXPECT_EQ(Recurrent().Fingerprint(), layout.Fingerprint());
  KvLayout other = layout;
  other.states[3][1].depth = 64;
  EXPECT_NE(other.Fingerprint(), layout.Fingerprint());
  EXPECT_THAT(other.Validate().message(), ::testing::HasSubstr("pieces of a state"));
  EXPECT_THAT(layout.ToString(), ::testing::HasSubstr("for the state of 24 recurrent layers"));
  other = layout;
  other.states[0][0].lanes = 24;
  EXPECT_THAT(other.Validate().message(), ::testing::HasSubstr("a multiple of 16"));
  other.states[0][0] = {.lanes = 16, .depth = 1 << 13};
  EXPECT_THAT(other.Validate().message(), ::testing::HasSubstr("states.depth"));
}

}  // namespace
}  // namespace baton::kv
