#include "common/model/weights.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/model/device_memory.h"
#include "common/model/left_over_tensors.h"
#include "common/model/model_tensors.h"
#include "common/model/weight_loader.h"

namespace baton::model {
namespace {

using backend::DType;

// Loads the parts of one layer. residual_length: the largest that a row of the residual stream has
// before the layer; becomes that behind it, infinite if it cannot be said.
class LayerLoader {
 public:
  // experts_on_host: the experts' matrices are packed in the host's memory.
  LayerLoader(const TensorNames& names, int layer, bool experts_on_host, WeightLoader& loader,
              double* residual_length)
      : names_(names),
        layer_(layer),
        experts_on_host_(experts_on_host),
        loader_(loader),
        residual_length_(*residual_length) {}

  absl::StatusOr<LayerWeights> Load(const LayerSpec& spec) {
    LayerWeights weights;
    for (const SublayerSpec& sublayer : spec.sublayers) {
      SublayerWeights& loaded = weights.sublayers.emplace_back();
      NormWeight norm_before, norm_after;
      BATON_ASSIGN_OR_RETURN(norm_before, Norm(sublayer.norm_before));
      if (const auto* attention = std::get_if<AttentionSpec>(&sublayer.body)) {
        BATON_ASSIGN_OR_RETURN(loaded.body, Attention(*attention));
      } else if (const auto* recurrent = std::get_if<RecurrentSpec>(&sublayer.body)) {
        BATON_ASSIGN_OR_RETURN(loaded.body, Recurrent(*recurrent));
      } else if (const auto* experts = std::get_if<ExpertsSpec>(&sublayer.body)) {
        BATON_ASSIGN_OR_RETURN(loaded.body, Experts(*experts, norm_before.host));
      } else if (const auto* input = std::get_if<LayerInputSpec>(&sublayer.body)) {
        BATON_ASSIGN_OR_RETURN(loaded.body, Input(*input));
      } else {
        BATON_ASSIGN_OR_RETURN(loaded.body,
                               Mlp(std::get<MlpSpec>(sublayer.body), norm_before.host));
      }
      BATON_ASSIGN_OR_RETURN(norm_after, Norm(sublayer.norm_after));
      residual_length_ += NormedLength(norm_after.host);
      loaded.norm_before = std::move(norm_before.device);
      loaded.norm_after = std::move(norm_after.device);
    }
    if (spec.scale) {
      const std::string name = names_.InLayer(layer_, spec.scale);
      BATON_ASSIGN_OR_RETURN(
          const std::vector<float> scale,
          loader_.FiniteFloats({names_.gguf() ? absl::StrCat(name, ".weight") : name, 1}));
      weights.scale = scale.front();
      residual_length_ *= std::fabs(weights.scale);
    }
    return weights;
  }

 private:
  std::vector<WeightLoader::Part> Parts(const ProductSpec& product, const char* kind,
                                        int expert = 0) const {
    std::vector<WeightLoader::Part> parts;
    for (const MatrixSpec& part : product.parts) {
      if (names_.Has(part)) {
        parts.push_back({absl::StrCat(names_.InLayer(layer_, part.name, expert), kind), part.rows});
      } else {
        parts.back().rows += part.rows;
      }
    }
    return parts;
  }

  absl::StatusOr<ProductWeights> Product(const ProductSpec& product, GatedRange* range = nullptr) {
    ProductWeights weights;
    BATON_ASSIGN_OR_RETURN(
        weights.matrix,
        !product.turns.empty() ? loader_.MatrixInTurns(Parts(product, ".weight").front(), product)
        : product.rounds
            ? loader_.Matrix(Parts(product, ".weight"), product.cols, product.quantized, range)
            : loader_.UnroundedMatrix(Parts(product, ".weight"), product.cols, product.quantized));
    if (product.bias) {
      BATON_ASSIGN_OR_RETURN(weights.bias, loader_.Vector(Parts(product, ".bias")));
    }
    return weights;
  }

  // Empty for a norm that the layer does not have.
  struct NormWeight {
    std::vector<float> host;
    std::unique_ptr<backend::Buffer> device;
  };
  absl::StatusOr<NormWeight> Norm(const NormSpec& norm) {
    NormWeight weight;
    if (!norm) return weight;
    BATON_ASSIGN_OR_RETURN(
        weight.host,
        loader_.Norm(absl::StrCat(names_.InLayer(layer_, norm.name), ".weight"), norm));
    BATON_ASSIGN_OR_RETURN(weight.device, loader_.ToDevice(weight.host));
    return weight;
  }

  // The largest length of a row that a norm with this weight leaves.
  static double NormedLength(const std::vector<float>& weight) {
    if (weight.empty()) return std::numeric_limits<double>::infinity();
    double largest = 0;
    for (const float value : weight) largest = std::max(largest, std::fabs(double{value}));
    return std::sqrt(static_cast<double>(weight.size())) * largest;
  }

  absl::StatusOr<AttentionWeights> Attention(const AttentionSpec& spec) {
    AttentionWeights weights;
    BATON_ASSIGN_OR_RETURN(weights.qkv, Product(spec.qkv));
    NormWeight q_norm, k_norm;
    BATON_ASSIGN_OR_RETURN(q_norm, Norm(spec.q_norm));
    BATON_ASSIGN_OR_RETURN(k_norm, Norm(spec.k_norm));
    weights.q_norm = std::move(q_norm.device);
    weights.k_norm = std::move(k_norm.device);
    if (spec.latent) {
      BATON_ASSIGN_OR_RETURN(weights.latent, Latent(spec));
    }
    BATON_ASSIGN_OR_RETURN(weights.output, Product(spec.output));
    if (spec.sinks) {
      const std::string name = names_.InLayer(layer_, spec.sinks);
      const WeightLoader::Part part = {names_.gguf() ? absl::StrCat(name, ".weight") : name,
                                       spec.query_heads};
      BATON_ASSIGN_OR_RETURN(weights.sinks, loader_.Vector({part}));
    }
    return weights;
  }

  absl::StatusOr<LayerInputWeights> Input(const LayerInputSpec& spec) {
    LayerInputWeights weights;
    BATON_ASSIGN_OR_RETURN(weights.gate, Product(spec.gate));
    BATON_ASSIGN_OR_RETURN(weights.projection, Product(spec.projection));
    return weights;
  }

  absl::StatusOr<RecurrentWeights> Recurrent(const RecurrentSpec& spec) {
    RecurrentWeights weights;
    BATON_ASSIGN_OR_RETURN(weights.in, Product(spec.in));
    if (spec.steps.cols > 0) {
      BATON_ASSIGN_OR_RETURN(weights.steps, Product(spec.steps));
    }
    const std::string conv = names_.InLayer(layer_, spec.conv);
    BATON_ASSIGN_OR_RETURN(
        const std::vector<float> taps,
        loader_.Taps(absl::StrCat(conv, ".weight"), spec.conv_width(), spec.taps));
    BATON_ASSIGN_OR_RETURN(weights.conv, loader_.ToDevice(taps));
    if (spec.conv_bias) {
      BATON_ASSIGN_OR_RETURN(weights.conv_bias,
                             loader_.Vector({{absl::StrCat(conv, ".bias"), spec.conv_width()}}));
    }
    if (spec.decay) {
      const WeightLoader::Part part = {names_.InLayer(layer_, spec.decay), spec.heads};
      BATON_ASSIGN_OR_RETURN(weights.decay, loader_.Decay(part));
    }
    if (spec.step_bias) {
      BATON_ASSIGN_OR_RETURN(
          weights.step_bias,
          loader_.FiniteVector({names_.InLayer(layer_, spec.step_bias), spec.heads}));
    }
    if (spec.skip) {
      BATON_ASSIGN_OR_RETURN(weights.skip,
                             loader_.FiniteVector({names_.InLayer(layer_, spec.skip), spec.heads}));
    }
    NormWeight norm;
    BATON_ASSIGN_OR_RETURN(norm, Norm(spec.norm));
    weights.norm = std::move(norm.device);
    BATON_ASSIGN_OR_RETURN(weights.output, Product(spec.output));
    return weights;
  }

  absl::StatusOr<LatentWeights> Latent(const AttentionSpec& attention) {
    const LatentSpec& spec = attention.latent;
    LatentWeights weights;
    NormWeight norm, q_norm;
    BATON_ASSIGN_OR_RETURN(norm, Norm(spec.norm));
    BATON_ASSIGN_OR_RETURN(q_norm, Norm(spec.q_norm));
    weights.norm = std::move(norm.device);
    weights.q_norm = std::move(q_norm.device);
    if (spec.q_norm) {
      BATON_ASSIGN_OR_RETURN(weights.q_up, Product(spec.q_up));
    }
    BATON_ASSIGN_OR_RETURN(
        auto expanders,
        loader_.Expanders({.all = absl::StrCat(names_.InLayer(layer_, spec.expand), ".weight"),
                           .keys = [&](int head) { return PartOfHead(spec.keys, head); },
                           .values = [&](int head) { return PartOfHead(spec.values, head); }},
                          spec, attention.query_heads));
    weights.keys = std::move(expanders.keys);
    weights.values = std::move(expanders.values);
    return weights;
  }
  std::string PartOfHead(TensorName name, int head) const {
    return absl::StrCat(names_.InLayer(layer_, name, head), ".weight");
  }

  // Returns nothing for a gated product that stays in the range of the activations' type.
  std::optional<GatedRange> RangeOf(const MlpSpec& spec, const std::vector<float>& norm_before) {
    std::optional<GatedRange> range;
    // A clamped product is at most 56.
    if (!loader_.needs_range() || spec.activation == backend::GatedActivation::kClampedSwiglu) {
      return range;
    }
    const double rows = static_cast<double>(norm_before.size());
    range.emplace(norm_before.empty() ? residual_length_ : std::sqrt(rows), norm_before);
    return range;
  }

  absl::StatusOr<MlpWeights> Mlp(const MlpSpec& spec, const std::vector<float>& norm_before) {
    BATON_CHECK(!spec.gate_up.bias && !spec.down.bias) << "no MLP that is served has biases";
    MlpWeights weights;
    std::optional<GatedRange> range = RangeOf(spec, norm_before);
    BATON_ASSIGN_OR_RETURN(weights.gate_up, Product(spec.gate_up, range ? &*range : nullptr));
    if (range) weights.scale = range->Scale(spec.has_gate());
    BATON_ASSIGN_OR_RETURN(weights.down, Product(spec.down));
    return weights;
  }

  // Loads the matrix of one of `count` experts. Their biases are loaded together.
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> ExpertMatrix(const ProductSpec& product,
                                                                      int expert, int count,
                                                                      GatedRange* range = nullptr) {
    if (!names_.IsFused(layer_, product)) {
      return loader_.Matrix(Parts(product, ".weight", expert), product.cols, product.quantized,
                            range);
    }
    return loader_.FusedMatrix({.name = names_.InLayer(layer_, product.fused),
                                .experts = count,
                                .expert = expert,
                                .rows = product.rows(),
                                .cols = product.cols,
                                .by_rows = product.fused_by_rows,
                                .in_turn = !product.fused_by_rows && product.parts.size() == 2},
                               product.quantized, range);
  }

  // Null without biases, else [count, rows].
  absl::StatusOr<std::unique_ptr<backend::Buffer>> ExpertBiases(const ProductSpec& product,
                                                                int count) {
    std::unique_ptr<backend::Buffer> biases;
    if (!product.bias) return biases;
    const size_t rows = static_cast<size_t>(product.rows());
    std::vector<float> all(static_cast<size_t>(count) * rows);
    if (!names_.gguf()) {
      BATON_ASSIGN_OR_RETURN(
          const std::vector<float> stored,
          loader_.Table(absl::StrCat(names_.InLayer(layer_, product.fused), "_bias"), count,
                        product.rows()));
      for (size_t i = 0; i < all.size(); ++i) {
        const size_t row = product.parts.size() == 2 ? FusedRow(i % rows, rows) : i % rows;
        all[i] = stored[i / rows * rows + row];
      }
      return loader_.ToDevice(all);
    }
    size_t first = 0;
    for (const MatrixSpec& part : product.parts) {
      // Without the expert's index.
      const std::string name = names_.InLayer(layer_, part.name);
      const auto width = static_cast<size_t>(part.rows);
      BATON_ASSIGN_OR_RETURN(
          const std::vector<float> stored,
          loader_.Table(absl::StrCat(name.substr(0, name.rfind('.')), ".bias"), count, part.rows));
      for (size_t i = 0; i < stored.size(); ++i) {
        all[i / width * rows + first + i % width] = stored[i];
      }
      first += width;
    }
    return loader_.ToDevice(all);
  }

  // before: becomes the weight of the norm before the experts.
  absl::StatusOr<ExpertsBesideWeights> Beside(const ExpertsSpec& spec, std::vector<float>* before) {
    const ExpertsBesideSpec& beside = spec.beside;
    ExpertsBesideWeights weights;
    NormWeight mlp_after, of_experts, after;
    BATON_ASSIGN_OR_RETURN(mlp_after, Norm(beside.mlp_after));
    BATON_ASSIGN_OR_RETURN(of_experts, Norm(beside.before));
    BATON_ASSIGN_OR_RETURN(after, Norm(beside.after));
    weights.mlp_after = std::move(mlp_after.device);
    weights.before = std::move(of_experts.device);
    weights.after = std::move(after.device);
    *before = std::move(of_experts.host);
    BATON_ASSIGN_OR_RETURN(
        std::vector<float> scale,
        loader_.FiniteFloats({names_.InLayer(layer_, beside.router_scale), spec.router.cols}));
    for (float& value : scale) value *= beside.router_factor;
    BATON_ASSIGN_OR_RETURN(weights.router_scale, loader_.ToDevice(scale));
    BATON_ASSIGN_OR_RETURN(
        weights.expert_scales,
        loader_.FiniteVector({names_.InLayer(layer_, beside.expert_scales), spec.count}));
    return weights;
  }

  absl::StatusOr<ExpertsWeights> Experts(const ExpertsSpec& spec,
                                         const std::vector<float>& norm_before) {
    ExpertsWeights weights;
    std::vector<float> before_experts = norm_before;
    const WeightLoader::Part router = Parts(spec.router, ".weight").front();
    BATON_ASSIGN_OR_RETURN(weights.router, loader_.Router(router, spec.router.cols));
    if (spec.router.bias) {
      BATON_ASSIGN_OR_RETURN(weights.router_bias, loader_.Vector(Parts(spec.router, ".bias")));
    }
    if (spec.choice_bias) {
      BATON_ASSIGN_OR_RETURN(
          weights.choice_bias,
          loader_.FiniteVector({names_.InLayer(layer_, spec.choice_bias), spec.count}));
    }
    if (spec.shared_gate.cols > 0) {
      BATON_ASSIGN_OR_RETURN(weights.shared_gate, Product(spec.shared_gate));
    }
    if (spec.shared.ffn_dim > 0) {
      BATON_ASSIGN_OR_RETURN(weights.shared, Mlp(spec.shared, norm_before));
      if (!spec.beside) weights.scale = weights.shared.scale;
    }
    if (spec.beside) {
      BATON_ASSIGN_OR_RETURN(weights.beside, Beside(spec, &before_experts));
    }
    const ProductSpec &gate_up = spec.expert.gate_up, &down = spec.expert.down;
    std::vector<backend::ExpertMatrices> matrices;
    loader_.PackOnHost(experts_on_host_);
    for (int expert = 0; expert < spec.count; ++expert) {
      std::optional<GatedRange> range = RangeOf(spec.expert, before_experts);
      BATON_ASSIGN_OR_RETURN(weights.matrices.emplace_back(),
                             ExpertMatrix(gate_up, expert, spec.count, range ? &*range : nullptr));
      if (range) weights.scale = std::min(weights.scale, range->Scale(spec.expert.has_gate()));
      BATON_ASSIGN_OR_RETURN(weights.matrices.emplace_back(),
                             ExpertMatrix(down, expert, spec.count));
      matrices.push_back({.gate_up = weights.matrices[weights.matrices.size() - 2].get(),
                          .down = weights.matrices.back().get()});
    }
    loader_.PackOnHost(false);
    BATON_ASSIGN_OR_RETURN(weights.gate_up_bias, ExpertBiases(gate_up, spec.count));
    BATON_ASSIGN_OR_RETURN(weights.down_bias, ExpertBiases(down, spec.count));
    BATON_ASSIGN_OR_RETURN(weights.group, loader_.Group(std::move(matrices),
                                                        {.gate_up = weights.gate_up_bias.get(),
                                                         .down = weights.down_bias.get()},
                                                        router.name));
    return weights;
  }

  const TensorNames& names_;
  const int layer_;
  const bool experts_on_host_;
  WeightLoader& loader_;
  double& residual_length_;
};

// Whether the LM head, as it is packed, serves as the embedding with the same bits.
bool SharesEmbedding(const Checkpoint& checkpoint, const ModelConfig& config,
                     const backend::Backend& backend) {
  if (!config.tied_embeddings || config.load_bits > 0) return false;
  // GPTQ and AWQ have a quantised LM head beside the embedding.
  const bool from_file =
      !config.lm_head_quantized ||
      (config.quantization && config.quantization->format == WeightQuantization::Format::kGguf);
  const std::optional<DType> dtype = EmbeddingDType(checkpoint, config, backend.activation_dtype());
  return from_file && dtype && backend.embeds_packed(*dtype);
}

}  // namespace

std::optional<DType> EmbeddingDType(const Checkpoint& checkpoint, const ModelConfig& config,
                                    DType activation) {
  const TensorNames names(config, checkpoint);
  const StoredTensor* embedding = checkpoint.Find(absl::StrCat(names.embedding(), ".weight"));
  if (embedding == nullptr) return std::nullopt;
  if (embedding->entry->blocks != nullptr) return activation;
  return embedding->entry->weight_dtype.value_or(DType::kF32);
}

namespace {

absl::StatusOr<LayerInputsWeights> LoadInputs(const LayerInputsSpec& spec, const TensorNames& names,
                                              WeightLoader& loader) {
  LayerInputsWeights weights;
  if (!spec) return weights;
  const auto name_of = [&](TensorName name) {
    return absl::StrCat(names.Outside(name), ".weight");
  };
  BATON_ASSIGN_OR_RETURN(weights.embedding,
                         loader.Embedding(name_of(spec.embedding), spec.vocab_size, spec.columns(),
                                          /*longest_row=*/nullptr));
  BATON_ASSIGN_OR_RETURN(
      weights.projection.matrix,
      loader.UnroundedMatrix({{name_of(spec.projection.parts[0].name), spec.columns()}},
                             spec.projection.cols, spec.projection.quantized));
  BATON_ASSIGN_OR_RETURN(const std::vector<float> norm,
                         loader.Norm(name_of(spec.norm.name), spec.norm));
  BATON_ASSIGN_OR_RETURN(weights.norm, loader.ToDevice(norm));
  return weights;
}

}  // namespace

absl::StatusOr<Weights> LoadMtpWeights(const Checkpoint& checkpoint, const ModelConfig& config,
                                       backend::Backend& backend) {
  const TensorNames names(config, checkpoint);
  const std::function<void(double)> no_progress;
  WeightLoader loader(checkpoint, config, no_progress, checkpoint.size_bytes(), backend);
  const auto norm = [&](const NormSpec& spec) -> absl::StatusOr<std::unique_ptr<backend::Buffer>> {
    BATON_ASSIGN_OR_RETURN(
        const std::vector<float> weight,
        loader.Norm(absl::StrCat(config.mtp->prefix, spec.name.hugging_face, ".weight"), spec));
    return loader.ToDevice(weight);
  };
  Weights weights;
  const MtpSpec& mtp = *config.mtp;
  for (const auto& [copy, original] :
       {std::pair(mtp.embedding_copy, names.embedding()), {mtp.lm_head_copy, names.lm_head()}}) {
    if (copy == nullptr) continue;
    BATON_RETURN_IF_ERROR(loader.CheckCopy(absl::StrCat(mtp.prefix, copy, ".weight"),
                                           absl::StrCat(original, ".weight")));
  }
  BATON_ASSIGN_OR_RETURN(weights.mtp.embedding_norm, norm(mtp.embedding_norm));
  BATON_ASSIGN_OR_RETURN(weights.mtp.hidden_norm, norm(mtp.hidden_norm));
  const MatrixSpec& input = mtp.input.parts.front();
  BATON_ASSIGN_OR_RETURN(
      weights.mtp.input.matrix,
      loader.Matrix({{absl::StrCat(mtp.prefix, input.name.hugging_face, ".weight"), input.rows}},
                    mtp.input.cols, mtp.input.quantized));
  double residual_length = std::numeric_limits<double>::infinity();
  LayerLoader layer(names, 0, /*experts_on_host=*/false, loader, &residual_length);
  BATON_ASSIGN_OR_RETURN(weights.layers.emplace_back(), layer.Load(config.layers.front()));
  BATON_ASSIGN_OR_RETURN(weights.final_norm, norm(config.final_norm));
  BATON_RETURN_IF_ERROR(CheckLeftOver(checkpoint, config, loader.taken()));
  loader.LogLoss();
  return weights;
}

absl::StatusOr<Weights> LoadWeights(const Checkpoint& checkpoint, const ModelConfig& config,
                                    const std::function<void(double)>& progress,
                                    backend::Backend& backend, int experts_on_host) {
  const TensorNames names(config, checkpoint);
  const std::string embedding_name = absl::StrCat(names.embedding(), ".weight");
  const StoredTensor* embedding = checkpoint.Find(embedding_name);
  const bool shared = SharesEmbedding(checkpoint, config, backend);
  const bool twice = config.tied_embeddings && embedding != nullptr && !shared;
  WeightLoader loader(
      checkpoint, config, progress,
      checkpoint.size_bytes() + (twice ? embedding->entry->end - embedding->entry->begin : 0),
      backend);
  Weights weights;
  double residual_length = std::numeric_limits<double>::infinity();
  if (!shared) {
    BATON_ASSIGN_OR_RETURN(weights.embedding,
                           loader.Embedding(embedding_name, config.vocab_size, config.hidden_dim,
                                            loader.needs_range() ? &residual_length : nullptr));
    residual_length *= std::fabs(config.embedding_scale);
  }
  BATON_ASSIGN_OR_RETURN(weights.inputs, LoadInputs(config.inputs, names, loader));
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const bool on_host = HasExpertsOnHost(config, i, experts_on_host);
    LayerLoader layer(names, static_cast<int>(i), on_host, loader, &residual_length);
    BATON_ASSIGN_OR_RETURN(weights.layers.emplace_back(), layer.Load(config.layers[i]));
  }
  BATON_ASSIGN_OR_RETURN(const std::vector<float> final_norm,
                         loader.Norm(absl::StrCat(names.Outside(config.final_norm.name), ".weight"),
                                     config.final_norm));
  BATON_ASSIGN_OR_RETURN(weights.final_norm, loader.ToDevice(final_norm));
  BATON_ASSIGN_OR_RETURN(
      weights.lm_head, loader.LmHead({absl::StrCat(names.lm_head(), ".weight"), config.vocab_size},
                                     config.hidden_dim, config.lm_head_quantized));
  BATON_RETURN_IF_ERROR(CheckLeftOver(checkpoint, config, loader.taken()));
  loader.LogLoss();
  if (progress) progress(1);
  return weights;
}

}  // namespace baton::model
