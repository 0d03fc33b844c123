// The sampling kernel on the emulated device against the CPU's sampler: the same token or the same
// error, always.
#include "common/backend/cuda/kernels/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/backend/cuda/sampling/sampling_upload.h"
#include "common/backend/exp_log.h"
#include "common/model/sampler.h"
#include "tests/common/backend/cuda/kernels/kernel_test.h"

namespace baton::backend::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Request {
  model::SamplingParams params;
  std::vector<int32_t> tokens, suppressed;
  int prompt_tokens = 0;
  uint64_t position = 0;
  int logit_row = 0;
};

// A token's id, or the error's words.
using Answer = std::pair<int32_t, std::string>;

class CudaSamplingTest : public KernelTest {
 protected:
  float Real(float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(random_);
  }
  bool OneIn(int n) { return Int(1, n) == 1; }

  int32_t AnyId(int vocab) { return OneIn(8) ? Int(-3, vocab + 3) : Int(0, vocab - 1); }

  std::vector<float> RandomLogits(int vocab) {
    std::vector<float> logits(static_cast<size_t>(vocab));
    const float spread = OneIn(6) ? std::exp(Real(-40, 80)) : Real(0.1f, 10);
    const float center = OneIn(3) ? Real(-50, 50) : 0;
    for (float& logit : logits) logit = center + Normal(spread);
    // Few different values: many ties, in the order of ids.
    if (OneIn(4)) {
      const float step = Real(0.2f, 4);
      for (float& logit : logits) logit = std::round(logit / step) * step;
    }
    if (OneIn(4)) {
      for (float& logit : logits) {
        if (OneIn(3)) logit = -kInfinity;
      }
    }
    if (OneIn(6)) {
      for (float& logit : logits) {
        if (OneIn(2)) logit = Coin() ? 0.0f : -0.0f;
      }
    }
    if (OneIn(10)) logits[static_cast<size_t>(Int(0, vocab - 1))] = Coin() ? 3.4e38f : -3.4e38f;
    if (OneIn(20)) {
      for (int n = Int(1, 3); n > 0; --n) {
        logits[static_cast<size_t>(Int(0, vocab - 1))] = Coin() ? kInfinity : std::nanf("");
      }
    }
    if (OneIn(40)) std::fill(logits.begin(), logits.end(), -kInfinity);
    if (OneIn(40)) {  // all but one
      std::fill(logits.begin(), logits.end(), -kInfinity);
      logits[static_cast<size_t>(Int(0, vocab - 1))] = Normal();
    }
    return logits;
  }

  Request RandomRequest(int vocab) {
    Request request;
    model::SamplingParams& params = request.params;
    constexpr float kTemperatures[] = {0, 1e-45f, 1e-30f, 1e-3f, 2};
    params.temperature = OneIn(3) ? kTemperatures[Int(0, 4)] : Coin() ? 1 : Real(0.05f, 2);
    if (Coin()) params.top_p = OneIn(4) ? 1e-9f : Real(0.01f, 1);
    if (Coin()) {
      params.top_k = OneIn(4) ? Int(-1, 2) : Int(1, std::min(vocab + 5, Coin() ? 60 : 1 << 20));
    }
    if (Coin()) {
      params.min_p = OneIn(4) ? (Coin() ? 1 : 1e-12f) : std::exp(Real(-15, 0));
    }
    params.seed = random_();
    params.choice = static_cast<uint32_t>(OneIn(3) ? random_() : Int(0, 3));
    request.position = OneIn(3) ? random_() : static_cast<uint64_t>(Int(0, 5000));
    if (OneIn(3)) params.repetition_penalty = Real(0.01f, 2);
    if (OneIn(3)) params.frequency_penalty = Real(-2, 2);
    if (OneIn(3)) params.presence_penalty = Real(-2, 2);
    for (int n = Coin() ? Int(0, 80) : 0; n > 0; --n) request.tokens.push_back(AnyId(vocab));
    request.prompt_tokens = Int(0, static_cast<int>(request.tokens.size()));
    for (int id = -1; OneIn(4) || (id >= 0 && OneIn(2));) {
      id += Int(1, vocab / 4 + 1);
      params.logit_bias.emplace_back(id, OneIn(4) ? -100 : Real(-5, 5));
    }
    if (OneIn(3)) {
      for (int n = Int(1, 5); n > 0; --n) request.suppressed.push_back(AnyId(vocab));
    }
    if (OneIn(30)) {
      for (int id = 0; id < vocab; ++id) request.suppressed.push_back(id);
    }
    return request;
  }

  // The kernel's answers to all requests in one go. shape.launches is theirs.
  static std::vector<Answer> Run(const std::vector<std::vector<float>>& logits,
                                 const std::vector<Request>& requests, SampleShape shape,
                                 int margin = 0) {
    const size_t vocab = logits[0].size();
    const size_t stride = (vocab + 7) / 8 * 8 + 8 * static_cast<size_t>(margin);
    DeviceArray<float> rows(logits.size() * stride);
    for (size_t row = 0; row < logits.size(); ++row) {
      std::copy(logits[row].begin(), logits[row].end(), rows.data() + row * stride);
    }
    const std::vector<float> before = rows.values();
    std::vector<SampleRow> sample_rows;
    for (const Request& request : requests) {
      const model::SamplingParams& params = request.params;
      sample_rows.push_back({.logit_row = request.logit_row,
                             .temperature = params.temperature,
                             .top_p = params.top_p,
                             .min_p = params.min_p,
                             .top_k = params.top_k,
                             .repetition_penalty = params.repetition_penalty,
                             .frequency_penalty = params.frequency_penalty,
                             .presence_penalty = params.presence_penalty,
                             .seed = params.seed,
                             .choice = params.choice,
                             .position = request.position,
                             .tokens = request.tokens,
                             .prompt_tokens = request.prompt_tokens,
                             .drafts = {},
                             .suppressed = request.suppressed,
                             .logit_bias = params.logit_bias});
    }
    // Of some answers the last token is known to the device alone.
    DeviceArray<int32_t> input_tokens(std::vector<int32_t>(requests.size()));
    for (size_t i = 0; i < requests.size(); ++i) {
      const Request& request = requests[i];
      const size_t size = request.tokens.size();
      if (static_cast<int>(size) == request.prompt_tokens || (size + i) % 2 == 0) continue;
      input_tokens[i] = request.tokens.back();
      sample_rows[i].tokens.remove_suffix(1);
      sample_rows[i].drawn_row = static_cast<int>(i);
    }
    SamplingUpload upload;
    const int count = static_cast<int>(requests.size());
    EXPECT_EQ(upload.Pack(sample_rows, {.bytes = 1 << 24, .workspace_rows = count}),
              requests.size());
    const DeviceArray<std::byte> packed(
        std::vector<std::byte>(upload.bytes().begin(), upload.bytes().end()));
    DeviceArray<float> adjusted(requests.size() * stride);
    DeviceArray<uint32_t> seen(std::vector<uint32_t>(requests.size() * stride));
    DeviceArray<uint8_t> adjusted_quads(std::vector<uint8_t>(requests.size() * stride / 4));
    DeviceArray<SampleResult> results(requests.size());
    SampleLaunch launch = {};
    upload.PointTo(packed.data(), launch);
    launch.logits = rows.data();
    launch.logits_stride = launch.workspace_stride = static_cast<int64_t>(stride);
    launch.vocab = static_cast<int>(vocab);
    launch.input_tokens = input_tokens.data();
    launch.adjusted = adjusted.data();
    launch.adjusted_quads = adjusted_quads.data();
    launch.seen = seen.data();
    launch.results = results.data();
    DeviceArray<SampleScratch> scratch(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {  // but for the list
      std::memset(&scratch[i], 0, offsetof(SampleScratch, places));
    }
    launch.scratch = scratch.data();
    shape.launches = 1;
    for (const Request& request : requests) {
      shape.launches =
          std::max(shape.launches, SampleLaunches(request.params.temperature, request.params.top_k,
                                                  static_cast<int>(vocab), shape.most_sorted));
    }
    LaunchSample(launch, count, shape, nullptr);
    EXPECT_TRUE(adjusted.MarginsIntact() && seen.MarginsIntact() && results.MarginsIntact() &&
                scratch.MarginsIntact() && adjusted_quads.MarginsIntact());
    const std::vector<std::byte> zeros(offsetof(SampleScratch, places));
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(std::memcmp(&scratch[i], zeros.data(), zeros.size()), 0) << "left scratch behind";
    }
    EXPECT_EQ(std::memcmp(before.data(), rows.data(), before.size() * sizeof(float)), 0)
        << "changed the logits";
    for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], 0u) << "left counts behind";
    for (size_t i = 0; i < adjusted_quads.size(); ++i) {
      EXPECT_EQ(adjusted_quads[i], 0) << "left changes behind";
    }
    std::vector<Answer> answers;
    for (size_t i = 0; i < requests.size(); ++i) {
      const SampleOutcome outcome = OutcomeOf(results[i]);
      switch (outcome.kind) {
        case SampleOutcome::Kind::kToken:
          answers.emplace_back(outcome.token_id, "");
          break;
        case SampleOutcome::Kind::kNonFinite:
          answers.emplace_back(
              -1, model::NonFiniteLogits(outcome.token_id, outcome.bad_logit).ToString());
          break;
        case SampleOutcome::Kind::kNoTokenLeft:
          answers.emplace_back(
              -1, model::NoTokenLeft(HistoryOf(requests[i]).suppressed.size()).ToString());
          break;
      }
    }
    return answers;
  }

  // The lists are short, so that they are sorted and overrun by turns.
  SampleShape AnyShape() {
    SampleShape shape;
    shape.blocks = Coin() ? 1 : Int(2, 9);
    // 512 fibers a block take their time.
    shape.threads = 32 << Int(0, OneIn(10) ? 4 : 1);
    if (Coin()) shape.most_sorted = Int(0, Coin() ? 70 : 200);
    return shape;
  }

  static model::SamplingHistory HistoryOf(const Request& request) {
    return {.tokens = request.tokens,
            .prompt_tokens = request.prompt_tokens,
            .suppressed = request.suppressed};
  }
  static Answer Expected(const std::vector<std::vector<float>>& logits, const Request& request) {
    const auto tokens = model::SampleMany(logits[static_cast<size_t>(request.logit_row)],
                                          request.params, HistoryOf(request), request.position, 1);
    if (!tokens.ok()) return {-1, tokens.status().ToString()};
    return {tokens->front().token_id, ""};
  }
};

TEST_F(CudaSamplingTest, EqualsTheCpuSamplerOnRandomRequests) {
  SCOPED_TRACE(seed_);
  constexpr int kRounds = 1500;
  int tokens = 0, errors = 0;
  for (int round = 0; round < kRounds; ++round) {
    ChangeMachine();
    const int vocab = OneIn(10) ? Int(1, 9) : OneIn(10) ? Int(1, 5000) : Int(1, 600);
    std::vector<std::vector<float>> logits;
    std::vector<Request> requests;
    for (int row = Int(1, 3); row > 0; --row) logits.push_back(RandomLogits(vocab));
    for (int n = Int(1, 4); n > 0; --n) {
      requests.push_back(RandomRequest(vocab));
      requests.back().logit_row = Int(0, static_cast<int>(logits.size()) - 1);
    }
    const std::vector<Answer> found = Run(logits, requests, AnyShape(), Int(0, 2));
    for (size_t i = 0; i < requests.size(); ++i) {
      const model::SamplingParams& params = requests[i].params;
      ASSERT_TRUE(model::Validate(params).ok()) << model::Validate(params);
      const Answer expected = Expected(logits, requests[i]);
      ASSERT_EQ(found[i], expected)
          << "round " << round << ", request " << i << ", vocabulary " << vocab << ", temperature "
          << params.temperature << ", top_k " << params.top_k << ", top_p " << params.top_p
          << ", min_p " << params.min_p;
      ++(expected.first >= 0 ? tokens : errors);
    }
  }
  EXPECT_GT(tokens, kRounds);
  EXPECT_GT(errors, kRounds / 50);
}

TEST_F(CudaSamplingTest, AWholeVocabulary) {
  SCOPED_TRACE(seed_);
  constexpr int kVocab = 151'936;
  std::vector<std::vector<float>> logits(1, std::vector<float>(kVocab));
  for (float& logit : logits[0]) logit = Normal(2.5f) - 3;
  std::vector<Request> requests;
  for (const int top_k : {0, 50, 1000, 100'000}) {
    for (const float top_p : {1.0f, 0.9f, 0.999f}) {
      for (const float min_p : {0.0f, 0.05f}) {
        Request& request = requests.emplace_back();
        request.params.top_k = top_k;
        request.params.top_p = top_p;
        request.params.min_p = min_p;
        request.params.temperature = Real(0.5f, 1.5f);
        request.params.seed = random_();
      }
    }
  }
  requests.push_back(RandomRequest(kVocab));
  requests.back().params.repetition_penalty = 1.1f;
  requests.back().tokens = {1, 2, 3, 2};
  requests.back().prompt_tokens = 1;
  std::vector<Answer> expected;
  for (const Request& request : requests) expected.push_back(Expected(logits, request));
  for (const SampleShape& shape :
       {SampleShape{}, SampleShape{.blocks = 37}, SampleShape{.blocks = 5, .threads = 128}}) {
    const std::vector<Answer> found = Run(logits, requests, shape);
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_EQ(found[i], expected[i]) << "request " << i << ", " << shape.blocks << " blocks";
    }
  }
}

// Rows that bins of equal widths serve badly or not at all, and filters that end near a border.
TEST_F(CudaSamplingTest, EqualsTheCpuSamplerWhereBinsAreCrowded) {
  SCOPED_TRACE(seed_);
  constexpr float kTemperatures[] = {1e-4f, 0.05f, 0.8f, 1, 2};
  for (int round = 0; round < 60; ++round) {
    ChangeMachine();
    const int vocab = Int(2049, 5000);
    std::vector<float> row(static_cast<size_t>(vocab));
    const int kind = round % 10;
    const float step = std::exp(Real(-12, 2));
    for (int id = 0; id < vocab; ++id) {
      float& logit = row[static_cast<size_t>(id)];
      logit = kind == 0   ? -3                                          // all equal
              : kind == 1 ? (OneIn(3) ? step : -step)                   // two values
              : kind == 2 ? Normal(0.01f)                               // flat, with outliers
              : kind == 3 ? (OneIn(50) ? Normal() : -kInfinity)         // few
              : kind == 4 ? static_cast<float>(Int(0, 900)) * 1.4e-45f  // denormals
              : kind == 5 ? static_cast<float>(id % 7) * step           // ties in all parts
              : kind == 6 ? Normal(3) + (OneIn(2) ? 0.0f : 1e6f)        // two crowds
              : kind == 7 ? std::round(Normal(2) / 0.125f) * 0.125f     // as of few bits
              : kind == 8 ? -std::exp(Real(-30, 30))                    // of all magnitudes
                          : Normal(2) + (id < vocab / 2 ? 0.0f : step);
    }
    if (kind == 2 || OneIn(5)) row[static_cast<size_t>(Int(0, vocab - 1))] = Coin() ? 1e4f : 60;
    if (kind == 2 || OneIn(5)) row[static_cast<size_t>(Int(0, vocab - 1))] = Coin() ? -1e9f : -60;
    std::vector<float> sorted = row;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    std::vector<Request> requests(4);
    for (Request& request : requests) {
      model::SamplingParams& params = request.params;
      params.temperature = kTemperatures[Int(0, 4)];
      params.seed = random_();
      if (Coin()) params.top_p = Coin() ? Real(0.5f, 1) : Real(0.001f, 1);
      if (Coin()) params.min_p = std::exp(Real(-12, 0));
      if (Coin()) {
        // As many as there are down to a border of bins, about: 41 powers of two are binned.
        const float zero = 41 * static_cast<float>(M_LN2) * params.temperature;
        const float width = std::min(zero, sorted.front() - sorted.back()) / 2048;
        const auto bin = [&](int n) {
          return std::round((sorted.front() - sorted[static_cast<size_t>(n)]) / width);
        };
        int last = Int(1, vocab - 1);
        while (last < vocab && bin(last) == bin(last - 1)) ++last;
        params.top_k = std::max(1, last + Int(-1, 1));
      }
    }
    SampleShape shape;
    shape.blocks = Int(1, 9);
    shape.threads = 64 << Int(0, 1);
    if (Coin()) shape.most_sorted = Int(1, 300);
    const std::vector<Answer> found = Run({row}, requests, shape);
    for (size_t i = 0; i < requests.size(); ++i) {
      const model::SamplingParams& params = requests[i].params;
      ASSERT_EQ(found[i], Expected({row}, requests[i]))
          << "round " << round << ", request " << i << ", vocabulary " << vocab << ", temperature "
          << params.temperature << ", top_k " << params.top_k << ", top_p " << params.top_p
          << ", min_p " << params.min_p << ", at most " << shape.most_sorted << " sorted";
    }
  }
}

// More requests than have scratch take turns.
TEST_F(CudaSamplingTest, ManyRequestsTakeTurns) {
  SCOPED_TRACE(seed_);
  constexpr int kVocab = 70;
  std::vector<std::vector<float>> logits = {RandomLogits(kVocab), RandomLogits(kVocab)};
  std::vector<Request> requests;
  for (int i = 0; i < 2 * kMaxSamplesAtOnce + 3; ++i) {
    requests.push_back(RandomRequest(kVocab));
    requests.back().logit_row = Int(0, 1);
  }
  const std::vector<Answer> found = Run(logits, requests, {.blocks = 2, .threads = 32});
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_EQ(found[i], Expected(logits, requests[i])) << "request " << i;
  }
}

// All logits alike: the filters keep the first ids, and a prefix ends among equals.
TEST_F(CudaSamplingTest, AmongEqualsTheFirstIdsAreKept) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 40; ++round) {
    ChangeMachine();
    const int vocab = OneIn(3) ? Int(3000, 9000) : Int(1, 300);
    const std::vector<std::vector<float>> logits(
        1, std::vector<float>(static_cast<size_t>(vocab), Normal()));
    std::vector<Request> requests(6);
    for (Request& request : requests) {
      request.params.seed = random_();
      request.params.top_k = Int(0, vocab);
      request.params.top_p = Real(0.01f, 1);
    }
    const std::vector<Answer> found = Run(logits, requests, AnyShape());
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_EQ(found[i], Expected(logits, requests[i])) << "round " << round;
      const int kept = requests[i].params.top_k == 0 ? vocab : requests[i].params.top_k;
      ASSERT_LT(found[i].first, kept);
    }
  }
}

// A share of the sum that is no whole number is rounded up: here by less than a unit of 2^-40,
// which decides whether the second token stays.
TEST_F(CudaSamplingTest, TopPIsReachedExactly) {
  constexpr float kTopP = 1 - 0x1p-10f;
  // (kOne + weight) * kTopP is kOne + 1 - 2^-9.
  constexpr uint64_t kWeight = (1 << 30) + (1 << 20) + (1 << 10) + 2;
  static_assert(kOne == uint64_t{1} << 40);
  std::vector<std::vector<float>> logits = {{0, -6.93f}};
  Request request;
  request.params.top_p = kTopP;
  const auto weight = [&](float temperature) {
    const double scale = M_LOG2E / static_cast<double>(temperature);
    return FixedExp2(static_cast<double>(logits[0][1]) * scale);
  };
  bool found = false;
  while (!found && logits[0][1] > -7) {
    logits[0][1] -= 1e-5f;
    // Where the temperature gives about the weight; then the logit decides the last digits.
    const float temperature =
        static_cast<float>(static_cast<double>(logits[0][1]) * M_LOG2E /
                           std::log2(static_cast<double>(kWeight) / static_cast<double>(kOne)));
    request.params.temperature = temperature;
    found = weight(temperature) == kWeight;
  }
  ASSERT_TRUE(found);
  std::vector<Request> requests;
  for (uint64_t seed = 0; seed < 20'000 && requests.size() < 8; ++seed) {
    request.params.seed = seed;
    if (Expected(logits, request).first == 1) requests.push_back(request);
  }
  ASSERT_EQ(requests.size(), 8u);
  for (const SampleShape& shape :
       {SampleShape{}, SampleShape{.blocks = 2}, SampleShape{.blocks = 2, .most_sorted = 0},
        SampleShape{.blocks = 2, .most_sorted = 1}}) {
    for (const Answer& answer : Run(logits, requests, shape)) EXPECT_EQ(answer.first, 1);
  }
}

TEST_F(CudaSamplingTest, NoRequestsAreNothing) { LaunchSample(SampleLaunch{}, 0, {}, nullptr); }

}  // namespace
}  // namespace baton::backend::cuda
