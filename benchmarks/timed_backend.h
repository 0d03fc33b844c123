// A CPU backend whose operations are timed: where the time of a step goes.
#ifndef BATON_BENCHMARKS_TIMED_BACKEND_H_
#define BATON_BENCHMARKS_TIMED_BACKEND_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/testing/forwarding_backend.h"

namespace baton::benchmarks {

// Time by stage, in the order of their names, since the last Clear. Operations of a CPU are done
// when they return, so a stage is the time of its calls.
class StageTimes {
 public:
  struct Stage {
    double seconds = 0;
    double operations = 0;  // floating-point, of products
    double bytes = 0;       // of weights
  };

  void Add(const std::string& name, double seconds, double operations = 0, double bytes = 0) {
    Stage& stage = stages_[name];
    stage.seconds += seconds;
    stage.operations += operations;
    stage.bytes += bytes;
  }
  void Clear() { stages_.clear(); }
  const std::map<std::string, Stage>& stages() const { return stages_; }

 private:
  std::map<std::string, Stage> stages_;
};

class TimedBackend final : public testing::ForwardingBackend {
 public:
  // `times` outlives the backend.
  TimedBackend(std::unique_ptr<backend::Backend> inner, StageTimes* times)
      : ForwardingBackend(std::move(inner)), times_(times) {}

  void Embed(const backend::DeviceBatch& batch, const backend::Tensor& table, float scale,
             const backend::Tensor& out) override {
    const Timer timer(times_, "embedding");
    ForwardingBackend::Embed(batch, table, scale, out);
  }
  void Norm(const backend::NormArgs& args) override {
    const Timer timer(times_, "norms");
    ForwardingBackend::Norm(args);
  }
  void MatMul(const backend::Tensor& x, const backend::PackedMatrix& weight,
              const backend::Buffer* bias, const backend::Tensor& out) override {
    const Timer timer(times_, NameOf(weight), OperationsOf(x, weight), BytesOf(weight));
    ForwardingBackend::MatMul(x, weight, bias, out);
  }
  void MatMulGated(const backend::Tensor& x, const backend::PackedMatrix& gate_up,
                   const backend::GatedArgs& args, const backend::Tensor& scratch,
                   const backend::Tensor& out) override {
    const Timer timer(times_, absl::StrCat(NameOf(gate_up), ", gated"), OperationsOf(x, gate_up),
                      BytesOf(gate_up));
    ForwardingBackend::MatMulGated(x, gate_up, args, scratch, out);
  }
  void RopeWriteKv(const backend::DeviceBatch& batch, const backend::KvPool& pool,
                   const backend::RopeWriteArgs& args) override {
    const Timer timer(times_, "RoPE, KV written");
    ForwardingBackend::RopeWriteKv(batch, pool, args);
  }
  void Attention(const backend::DeviceBatch& batch, const backend::KvPool& pool,
                 const backend::AttentionArgs& args) override {
    const Timer timer(times_, "attention");
    ForwardingBackend::Attention(batch, pool, args);
  }
  void Experts(const backend::ExpertsArgs& args) override {
    const Timer timer(times_, "experts");
    ForwardingBackend::Experts(args);
  }
  void ShortConv(const backend::DeviceBatch& batch, const backend::KvPool& pool,
                 const backend::ShortConvArgs& args) override {
    const Timer timer(times_, "short convolution");
    ForwardingBackend::ShortConv(batch, pool, args);
  }
  void GatedDelta(const backend::DeviceBatch& batch, const backend::KvPool& pool,
                  const backend::GatedDeltaArgs& args) override {
    const Timer timer(times_, "gated delta rule");
    ForwardingBackend::GatedDelta(batch, pool, args);
  }
  void StateSpace(const backend::DeviceBatch& batch, const backend::KvPool& pool,
                  const backend::StateSpaceArgs& args) override {
    const Timer timer(times_, "state space");
    ForwardingBackend::StateSpace(batch, pool, args);
  }
  void GatedNorm(const backend::GatedNormArgs& args) override {
    const Timer timer(times_, "gated norm");
    ForwardingBackend::GatedNorm(args);
  }

 private:
  using Clock = std::chrono::steady_clock;

  class Timer {
   public:
    Timer(StageTimes* times, std::string name, double operations = 0, double bytes = 0)
        : times_(times), name_(std::move(name)), operations_(operations), bytes_(bytes) {}
    ~Timer() {
      const std::chrono::duration<double> elapsed = Clock::now() - start_;
      times_->Add(name_, elapsed.count(), operations_, bytes_);
    }
    Timer(const Timer&) = delete;

   private:
    StageTimes* const times_;
    const std::string name_;
    const double operations_, bytes_;
    const Clock::time_point start_ = Clock::now();
  };

  static std::string NameOf(const backend::PackedMatrix& weight) {
    return absl::StrCat("product ", weight.out_features(), " x ", weight.in_features());
  }
  static double OperationsOf(const backend::Tensor& x, const backend::PackedMatrix& weight) {
    return 2.0 * static_cast<double>(x.rows) * static_cast<double>(weight.out_features()) *
           static_cast<double>(weight.in_features());
  }
  static double BytesOf(const backend::PackedMatrix& weight) {
    return static_cast<double>(weight.size_bytes());
  }

  StageTimes* const times_;
};

}  // namespace baton::benchmarks

#endif  // BATON_BENCHMARKS_TIMED_BACKEND_H_
