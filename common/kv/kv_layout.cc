#include "common/kv/kv_layout.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/kv/byte_order.h"
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

// The most layers a page: the more, the fewer tables; the padding of both kinds together is at most
// this share of the layers.
constexpr double kMostPadding = 0.05;

int LayersPerPage(int full, int windowed, bool recurrent) {
  if (windowed == 0 || recurrent) return full;
  const auto padded = [](int layers, int a_page) {
    return (layers + a_page - 1) / a_page * a_page;
  };
  for (int a_page = std::min(full, windowed); a_page > 1; --a_page) {
    const int padding = padded(full, a_page) + padded(windowed, a_page) - full - windowed;
    if (padding <= kMostPadding * (full + windowed)) return a_page;
  }
  return 1;
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
  BATON_RETURN_IF_ERROR(CheckStates(*this));
  return CheckRange("format_version", format_version, kKvFormatVersion, kKvFormatVersion);
}

int64_t KvLayout::HeadBytes() const {
  const DtypeFacts* facts = Find(dtype);
  BATON_CHECK(facts != nullptr) << static_cast<int>(dtype);
  const int64_t row = int64_t{head_dim} * facts->bits / 8;
  return block_tokens * (row + (facts->quantized ? kScaleAndZeroBytes : 0));
}

int64_t KvLayout::ChunkBytes() const { return (latent_dim > 0 ? 1 : 2) * kv_heads * HeadBytes(); }

int64_t KvLayout::BlockBytes() const { return layers * ChunkBytes(); }

KvPages KvLayout::Pages() const {
  const int full =
      windowed() ? static_cast<int>(std::count(windows.begin(), windows.end(), 0)) : layers;
  KvPages pages;
  pages.layers_per_page = LayersPerPage(full, layers - full, recurrent());
  const auto tables = [&pages](int of) {
    return (of + pages.layers_per_page - 1) / pages.layers_per_page;
  };
  pages.full_tables = tables(full);
  pages.window_tables = tables(layers - full);
  int full_layers = 0, window_layers = 0;
  for (int layer = 0; layer < layers; ++layer) {
    const bool is_full = window(layer) == 0;
    const int index = is_full ? full_layers++ : window_layers++;
    pages.places.push_back({(is_full ? 0 : pages.full_tables) + index / pages.layers_per_page,
                            index % pages.layers_per_page});
  }
  const int64_t chunk = ChunkBytes();
  StatePacker packer(pages.layers_per_page * chunk);
  for (const std::vector<StateShape>& layer : states) {
    std::vector<KvPages::Plane>& planes = pages.states.emplace_back();
    for (const StateShape& shape : layer) planes.push_back(packer.Pack(shape));
    pages.pieces_behind.push_back(static_cast<int>(packer.end_bytes() / chunk));
  }
  if (recurrent()) pages.pieces_behind.back() = state_pieces();
  return pages;
}

BlockShape KvLayout::Shape() const {
  const KvPages pages = Pages();
  return {pages.full_tables, pages.window_tables, WindowBlocks(*this), recurrent()};
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
  return absl::StrCat(layers, " layers, ", kv_heads, " kv heads of ", head_dim,
                      latent_dim > 0 ? absl::StrCat(" with latents of ", latent_dim) : "", ", ",
                      block_tokens, "-token blocks, ", DtypeText(), WindowsText(*this), ", format ",
                      format_version, numerics.empty() ? "" : ", by ", numerics);
}

}  // namespace baton::kv
