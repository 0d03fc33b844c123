#include "common/kv/kv_layout.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/kv/byte_order.h"
#include "common/kv/page_packer.h"
#include "xxhash.h"

namespace baton::kv {
namespace {

// Far above any model, and small enough that BlockBytes() stays below 2^48.
constexpr int kMaxLayers = 4096;
constexpr int kMaxPieces = 1 << 16;
constexpr int kMaxPlanes = 4;
constexpr int64_t kMaxLanes = int64_t{1} << 24;
constexpr int kMaxDepth = 1 << 12;
constexpr int64_t kStateLanes = 16;  // backend::kStateLanes
constexpr int kMaxKvHeads = 1024;
constexpr int kMaxHeadDim = 4096;
constexpr int kBlockTokensStep = 16;
constexpr int kMaxBlockTokens = 256;
constexpr int kMaxWindow = 1 << 30;

absl::Status CheckRange(absl::string_view field, int value, int min, int max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return InvalidField("KV_LAYOUT_INVALID", absl::StrCat("kv_layout.", field),
                      absl::StrCat("is ", value, ", expected ", min, " to ", max));
}

struct DtypeFacts {
  KvDtype dtype;
  absl::string_view name;
  int bits;        // of an element
  bool quantized;  // with a scale and a zero for each token and head
};
constexpr DtypeFacts kDtypes[] = {
    {KvDtype::kF32, "float32", 32, false}, {KvDtype::kBF16, "bfloat16", 16, false},
    {KvDtype::kF16, "float16", 16, false}, {KvDtype::kInt8, "int8", 8, true},
    {KvDtype::kInt4, "int4", 4, true},     {KvDtype::kFp8, "fp8", 8, true},
};
constexpr int kScaleAndZeroBytes = 4;

const DtypeFacts* Find(KvDtype dtype) {
  for (const DtypeFacts& facts : kDtypes) {
    if (facts.dtype == dtype) return &facts;
  }
  return nullptr;
}

// Blocks before a token's that the widest window may reach into, wherever the token is in its
// block. One number for all layers: their pages are freed together.
int WindowBlocks(const KvLayout& layout) {
  if (!layout.windowed()) return 0;
  const int widest = *std::max_element(layout.windows.begin(), layout.windows.end());
  return (widest + layout.block_tokens - 1) / layout.block_tokens;
}

// Layers of fewer bytes than a chunk leave its end unused.
constexpr int64_t kChunkStep = 64;
constexpr int64_t kMostChunksOfLayer = 64;

// K or V of one head of one layer of a block.
int64_t HeadBytesOf(const KvLayout& layout, int head_dim) {
  const DtypeFacts* facts = Find(layout.dtype);
  BATON_CHECK(facts != nullptr) << static_cast<int>(layout.dtype);
  const int64_t row = int64_t{head_dim} * facts->bits / 8;
  return layout.block_tokens * (row + (facts->quantized ? kScaleAndZeroBytes : 0));
}

int64_t BytesOf(const KvLayout& layout, KvHeads heads) {
  return 2 * heads.kv_heads * HeadBytesOf(layout, heads.head_dim);
}

// How many chunks each layer has where layers differ, and how many bytes a chunk then takes. A
// layer has about as many chunks as its KV is larger than the smallest layer's.
struct ChunkSizes {
  std::vector<int> counts;
  int64_t bytes = 0;
};
ChunkSizes ChunkSizesOf(const KvLayout& layout) {
  int64_t smallest = std::numeric_limits<int64_t>::max();
  for (const KvHeads& heads : layout.layer_heads) {
    smallest = std::min(smallest, BytesOf(layout, heads));
  }
  ChunkSizes sizes;
  for (const KvHeads& heads : layout.layer_heads) {
    const int64_t bytes = BytesOf(layout, heads);
    const int64_t count = std::min((bytes + smallest / 2) / smallest, kMostChunksOfLayer);
    sizes.counts.push_back(static_cast<int>(count));
    sizes.bytes = std::max(sizes.bytes, (bytes + count - 1) / count);
  }
  sizes.bytes = (sizes.bytes + kChunkStep - 1) / kChunkStep * kChunkStep;
  return sizes;
}

// The activations' type, if the layout's elements are of fewer bits; else null.
const DtypeFacts* RoundedFrom(const KvLayout& layout) {
  const DtypeFacts *facts = Find(layout.dtype), *source = Find(layout.computed);
  if (facts == nullptr || source == nullptr || facts->bits >= source->bits) return nullptr;
  return source;
}

// Lays planes down unit by unit: a group of units that lie together does not cross pages. Small
// groups leave little of a page empty, and large ones keep the tables of spots short.
class StatePacker {
 public:
  explicit StatePacker(int64_t page_bytes) : page_bytes_(page_bytes) {}

  KvPages::Plane Pack(const StateShape& shape) {
    const int64_t units = shape.lanes / kStateLanes, unit_bytes = UnitBytes(shape);
    KvPages::Plane plane;
    plane.spot_units =
        static_cast<int>(std::clamp<int64_t>(page_bytes_ / kGroupsOfPage / unit_bytes, 1, units));
    for (int64_t unit = 0; unit < units; unit += plane.spot_units) {
      const int64_t bytes = std::min<int64_t>(plane.spot_units, units - unit) * unit_bytes;
      if (offset_ + bytes > page_bytes_) {
        ++page_;
        offset_ = 0;
      }
      plane.spots.push_back({page_, offset_});
      offset_ += bytes;
    }
    return plane;
  }
  int64_t end_bytes() const { return page_ * page_bytes_ + offset_; }

  static int64_t UnitBytes(const StateShape& shape) {
    return kStateLanes * static_cast<int64_t>(sizeof(float)) * shape.depth;
  }

 private:
  static constexpr int64_t kGroupsOfPage = 32;
  const int64_t page_bytes_;
  int page_ = 0;
  int64_t offset_ = 0;
};

// The pieces that a state takes, of pages with so many chunks.
int PiecesOf(const std::vector<std::vector<StateShape>>& states, int64_t chunk_bytes,
             int layers_per_page) {
  StatePacker packer(chunk_bytes * layers_per_page);
  for (const auto& layer : states) {
    for (const StateShape& shape : layer) packer.Pack(shape);
  }
  return static_cast<int>((packer.end_bytes() + chunk_bytes - 1) / chunk_bytes);
}

// E.g. "4 kv heads of 256" or "chunks of 24 layers, with kv heads of 256 to 512".
std::string HeadsText(const KvLayout& layout) {
  if (layout.layer_heads.empty()) {
    return absl::StrCat(layout.kv_heads, " kv heads of ", layout.head_dim);
  }
  const auto [least, most] = std::minmax_element(
      layout.layer_heads.begin(), layout.layer_heads.end(),
      [](const KvHeads& a, const KvHeads& b) { return a.head_dim < b.head_dim; });
  return absl::StrCat("chunks of ", layout.layer_heads.size(), " layers, with kv heads of ",
                      least->head_dim, " to ", most->head_dim);
}

// E.g. ", 29 layers with windows of up to 1024".
std::string WindowsText(const KvLayout& layout) {
  const std::vector<int>& windows = layout.windows;
  if (layout.recurrent()) {
    return absl::StrCat(", of them ", layout.state_pieces(), " for the state of ",
                        layout.states.size(), " recurrent layers");
  }
  if (windows.empty()) return "";
  const auto full = std::count(windows.begin(), windows.end(), 0);
  return absl::StrCat(", ", static_cast<int64_t>(windows.size()) - full,
                      " layers with windows of up to ",
                      *std::max_element(windows.begin(), windows.end()));
}

}  // namespace

absl::string_view KvDtypeName(KvDtype dtype) {
  const DtypeFacts* facts = Find(dtype);
  BATON_CHECK(facts != nullptr) << static_cast<int>(dtype);
  return facts->name;
}

std::optional<KvDtype> ParseKvDtype(absl::string_view name) {
  for (const DtypeFacts& facts : kDtypes) {
    if (name == facts.name) return facts.dtype;
  }
  return std::nullopt;
}

namespace {

// Of a layout whose other fields are valid.
absl::Status CheckStates(const KvLayout& layout) {
  if (!layout.recurrent()) return absl::OkStatus();
  const int attention = layout.attention_layers();
  for (const std::vector<StateShape>& layer : layout.states) {
    BATON_RETURN_IF_ERROR(
        CheckRange("states.planes", static_cast<int>(layer.size()), 1, kMaxPlanes));
    for (const StateShape& shape : layer) {
      BATON_RETURN_IF_ERROR(CheckRange("states.depth", shape.depth, 1, kMaxDepth));
      if (shape.lanes < kStateLanes || shape.lanes > kMaxLanes || shape.lanes % kStateLanes != 0) {
        return InvalidField("KV_LAYOUT_INVALID", "kv_layout.states.lanes",
                            absl::StrCat("are ", shape.lanes, ", expected a multiple of ",
                                         kStateLanes, " up to ", kMaxLanes));
      }
      const int64_t page_bytes = attention * layout.ChunkBytes();
      if (StatePacker::UnitBytes(shape) > page_bytes) {
        return InvalidField("KV_LAYOUT_INVALID", "kv_layout.states.depth",
                            absl::StrCat("is ", shape.depth, ", expected at most what a page of ",
                                         page_bytes, " bytes holds of ", kStateLanes, " lanes"));
      }
    }
  }
  const int pieces = PiecesOf(layout.states, layout.ChunkBytes(), attention);
  if (pieces == layout.state_pieces()) return absl::OkStatus();
  return InvalidField(
      "KV_LAYOUT_INVALID", "kv_layout.layers",
      absl::StrCat("have ", layout.state_pieces(), " pieces of a state, expected ", pieces));
}

// REQUIRES: the other fields of the layout are valid.
absl::Status CheckHeads(const KvLayout& layout) {
  if (layout.layer_heads.empty()) return absl::OkStatus();
  const auto invalid = [](absl::string_view field, const std::string& text) {
    return InvalidField("KV_LAYOUT_INVALID", absl::StrCat("kv_layout.", field), text);
  };
  if (layout.latent_dim > 0 || layout.recurrent()) {
    return invalid("layer_heads", "are given with latents or recurrent layers, expected none");
  }
  for (const KvHeads& heads : layout.layer_heads) {
    BATON_RETURN_IF_ERROR(CheckRange("layer_heads.kv_heads", heads.kv_heads, 1, kMaxKvHeads));
    BATON_RETURN_IF_ERROR(CheckRange("layer_heads.head_dim", heads.head_dim, 1, kMaxHeadDim));
    if (heads.head_dim * Find(layout.dtype)->bits % 8 != 0) {
      return invalid("layer_heads.head_dim",
                     absl::StrCat("is ", heads.head_dim, ", expected whole bytes"));
    }
  }
  int chunks = 0;
  for (const int count : ChunkSizesOf(layout).counts) {
    for (int i = 1; i < count && chunks + count <= layout.layers; ++i) {
      if (layout.window(chunks + i) == layout.window(chunks)) continue;
      return invalid("windows", absl::StrCat("differ in one layer, at chunk ", chunks + i));
    }
    chunks += count;
  }
  if (chunks == layout.layers) return absl::OkStatus();
  return invalid("layers", absl::StrCat("are ", layout.layers, ", expected ", chunks,
                                        " chunks of layers that differ in their heads"));
}

}  // namespace

absl::Status KvLayout::Validate() const {
  BATON_RETURN_IF_ERROR(
      CheckRange("layers", layers, 1, recurrent() ? kMaxLayers + kMaxPieces : kMaxLayers));
  BATON_RETURN_IF_ERROR(CheckRange("kv_heads", kv_heads, 1, kMaxKvHeads));
  BATON_RETURN_IF_ERROR(CheckRange("head_dim", head_dim, 1, kMaxHeadDim));
  BATON_RETURN_IF_ERROR(CheckRange("latent_dim", latent_dim, 0, head_dim));
  BATON_RETURN_IF_ERROR(
      CheckRange("block_tokens", block_tokens, kBlockTokensStep, kMaxBlockTokens));
  if (block_tokens % kBlockTokensStep != 0) {
    return InvalidField(
        "KV_LAYOUT_INVALID", "kv_layout.block_tokens",
        absl::StrCat("is ", block_tokens, ", expected a multiple of ", kBlockTokensStep));
  }
  const DtypeFacts* facts = Find(dtype);
  if (facts == nullptr) {
    return InvalidField("KV_LAYOUT_INVALID", "kv_layout.dtype",
                        absl::StrCat("is number ", static_cast<int>(dtype), ", expected 1 to ",
                                     std::size(kDtypes)));
  }
  if (const DtypeFacts* source = Find(computed); source == nullptr || source->quantized) {
    return InvalidField(
        "KV_LAYOUT_INVALID", "kv_layout.computed",
        absl::StrCat("is number ", static_cast<int>(computed), ", expected 1 to 3"));
  }
  if (head_dim * facts->bits % 8 != 0) {
    return InvalidField("KV_LAYOUT_INVALID", "kv_layout.head_dim",
                        absl::StrCat("is ", head_dim, ", expected whole bytes of ", facts->name));
  }
  if (windowed()) {
    if (windows.size() != static_cast<size_t>(layers)) {
      return InvalidField("KV_LAYOUT_INVALID", "kv_layout.windows",
                          absl::StrCat("are ", windows.size(), ", expected one a layer, ", layers));
    }
    for (const int window : windows) {
      BATON_RETURN_IF_ERROR(CheckRange("windows", window, 0, kMaxWindow));
    }
    if (std::count(windows.begin(), windows.end(), 0) == 0) {
      return InvalidField("KV_LAYOUT_INVALID", "kv_layout.windows",
                          "are of all layers, expected a layer without one");
    }
  }
  BATON_RETURN_IF_ERROR(CheckHeads(*this));
  BATON_RETURN_IF_ERROR(CheckStates(*this));
  return CheckRange("format_version", format_version, kKvFormatVersion, kKvFormatVersion);
}

int64_t KvLayout::HeadBytes() const { return HeadBytesOf(*this, head_dim); }

int64_t KvLayout::ChunkBytes() const {
  if (!layer_heads.empty()) return ChunkSizesOf(*this).bytes;
  return (latent_dim > 0 ? 1 : 2) * kv_heads * HeadBytes();
}

int64_t KvLayout::BlockBytes() const { return layers * ChunkBytes(); }

KvLayout::Chunks KvLayout::ChunksOf(int layer) const {
  if (layer_heads.empty()) return {layer, layer + 1};
  const std::vector<int> counts = ChunkSizesOf(*this).counts;
  const int first = std::accumulate(counts.begin(), counts.begin() + layer, 0);
  return {first, first + counts[static_cast<size_t>(layer)]};
}

KvPages KvLayout::Pages() const {
  const std::vector<int> counts = layer_heads.empty()
                                      ? std::vector<int>(static_cast<size_t>(layers), 1)
                                      : ChunkSizesOf(*this).counts;
  std::vector<int> full, windowed;
  int chunk = 0;
  for (const int count : counts) {
    (window(chunk) == 0 ? full : windowed).push_back(count);
    chunk += count;
  }
  KvPages pages;
  pages.layers_per_page = LayersPerPage(full, windowed, recurrent());
  PagePacker of_full(pages.layers_per_page), of_windowed(pages.layers_per_page);
  for (const int count : counts) {
    const bool sees_all = window(static_cast<int>(pages.places.size())) == 0;
    const KvPages::Place first = (sees_all ? of_full : of_windowed).Add(count);
    for (int i = 0; i < count; ++i) pages.places.push_back({first.table, first.slot + i});
  }
  pages.full_tables = of_full.pages();
  pages.window_tables = of_windowed.pages();
  for (int i = 0; i < layers; ++i) {
    if (window(i) != 0) pages.places[static_cast<size_t>(i)].table += pages.full_tables;
  }
  const int64_t chunk_bytes = ChunkBytes();
  StatePacker packer(pages.layers_per_page * chunk_bytes);
  for (const std::vector<StateShape>& layer : states) {
    std::vector<KvPages::Plane>& planes = pages.states.emplace_back();
    for (const StateShape& shape : layer) planes.push_back(packer.Pack(shape));
    pages.pieces_behind.push_back(static_cast<int>(packer.end_bytes() / chunk_bytes));
  }
  if (recurrent()) pages.pieces_behind.back() = state_pieces();
  return pages;
}

BlockShape KvLayout::Shape() const {
  const KvPages pages = Pages();
  return {pages.full_tables, pages.window_tables, WindowBlocks(*this), recurrent()};
}

void KvLayout::SetHeads(std::vector<KvHeads> of_layers) {
  BATON_CHECK(layer_heads.empty() && !recurrent());
  BATON_CHECK_EQ(of_layers.size(), static_cast<size_t>(layers));
  layer_heads = std::move(of_layers);
  kv_heads = layer_heads.front().kv_heads;
  head_dim = layer_heads.front().head_dim;
  const std::vector<int> counts = ChunkSizesOf(*this).counts;
  layers = std::accumulate(counts.begin(), counts.end(), 0);
  if (!windowed()) return;
  std::vector<int> of_chunks;
  for (size_t i = 0; i < counts.size(); ++i) {
    of_chunks.insert(of_chunks.end(), static_cast<size_t>(counts[i]), windows[i]);
  }
  windows = std::move(of_chunks);
}

void KvLayout::AddStates(std::vector<std::vector<StateShape>> of_layers) {
  BATON_CHECK(windows.empty() && states.empty() && !of_layers.empty());
  const int pieces = PiecesOf(of_layers, ChunkBytes(), layers);
  windows.assign(static_cast<size_t>(layers), 0);
  windows.resize(static_cast<size_t>(layers + pieces), 1);
  layers += pieces;
  states = std::move(of_layers);
}

int KvLayout::state_pieces() const {
  return recurrent() ? static_cast<int>(std::count(windows.begin(), windows.end(), 1)) : 0;
}

int64_t KvLayout::PageBytes() const { return Pages().layers_per_page * ChunkBytes(); }

int KvLayout::FirstNeededBlock(int layer, int blocks, int end) const {
  if (window(layer) == 0) return 0;
  if (recurrent()) return std::max(0, end - 1);
  return BlockShape{.window_blocks = WindowBlocks(*this)}.FirstWindowBlock(blocks);
}

int64_t KvLayout::NeededBytes(int first_block, int end, int blocks) const {
  int64_t chunks = 0;
  for (int layer = 0; layer < layers; ++layer) {
    chunks += std::max(0, end - std::max(first_block, FirstNeededBlock(layer, blocks, end)));
  }
  return chunks * ChunkBytes();
}

absl::Status KvLayout::CheckCaller(uint64_t fingerprint) const {
  if (fingerprint == Fingerprint()) return absl::OkStatus();
  std::string callers = absl::StrCat("KV layout ", absl::Hex(fingerprint));
  for (const DtypeFacts& facts : kDtypes) {
    for (const KvDtype source : {KvDtype::kF32, KvDtype::kBF16, KvDtype::kF16}) {
      for (const int bits : {0, 4, 8}) {
        for (const bool dequantized : {false, true}) {
          KvLayout other = *this;
          other.dtype = facts.dtype;
          other.computed = source;
          other.weight_bits = bits;
          other.dequantized = dequantized;
          if (other.Fingerprint() != fingerprint) continue;
          callers = absl::StrCat("KV of ", other.DtypeText());
        }
      }
    }
  }
  return MakeError(absl::StatusCode::kFailedPrecondition, "KV_LAYOUT",
                   absl::StrCat("the caller has ", callers, ", this worker has ", ToString(), " (",
                                absl::Hex(Fingerprint()), "): expected the same"));
}

uint64_t KvLayout::Fingerprint() const {
  ByteString bytes;
  for (int field :
       {layers, kv_heads, head_dim, block_tokens, static_cast<int>(dtype), format_version}) {
    AppendLittleEndian(static_cast<uint32_t>(field), &bytes);
  }
  if (latent_dim > 0) AppendLittleEndian(static_cast<uint32_t>(latent_dim), &bytes);
  if (RoundedFrom(*this) != nullptr) {
    AppendLittleEndian(static_cast<uint32_t>(computed), &bytes);
  }
  if (weight_bits != 0 || dequantized) {
    AppendLittleEndian(static_cast<uint32_t>(weight_bits), &bytes);
  }
  if (dequantized) AppendLittleEndian(uint32_t{1}, &bytes);
  bytes.insert(bytes.end(), numerics.begin(), numerics.end());
  for (const int window : windows) AppendLittleEndian(static_cast<uint32_t>(window), &bytes);
  for (const KvHeads& heads : layer_heads) {
    AppendLittleEndian(static_cast<uint32_t>(heads.kv_heads), &bytes);
    AppendLittleEndian(static_cast<uint32_t>(heads.head_dim), &bytes);
  }
  for (const std::vector<StateShape>& layer : states) {
    for (const auto& [lanes, depth] : layer) {
      AppendLittleEndian(static_cast<uint32_t>(lanes), &bytes);
      AppendLittleEndian(static_cast<uint32_t>(depth), &bytes);
    }
  }
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string KvLayout::DtypeText() const {
  // The dtype may be one that Validate() refuses, and the refusal wants to print it.
  const DtypeFacts* facts = Find(dtype);
  if (facts == nullptr) return absl::StrCat("dtype ", static_cast<int>(dtype));
  std::string text(facts->name);
  if (const DtypeFacts* source = RoundedFrom(*this)) absl::StrAppend(&text, " of ", source->name);
  if (dequantized) absl::StrAppend(&text, " with dequantised weights");
  if (weight_bits != 0) {
    absl::StrAppend(&text, dequantized ? "" : " with weights", " of ", weight_bits, " bits");
  }
  return text;
}

std::string KvLayout::ToString() const {
  return absl::StrCat(layers, layer_heads.empty() ? " layers, " : " ", HeadsText(*this),
                      latent_dim > 0 ? absl::StrCat(" with latents of ", latent_dim) : "", ", ",
                      block_tokens, "-token blocks, ", DtypeText(), WindowsText(*this), ", format ",
                      format_version, numerics.empty() ? "" : ", by ", numerics);
}

}  // namespace baton::kv
