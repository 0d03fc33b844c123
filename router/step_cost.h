// What a decode step takes: base + slope · tokens of context in the batch, fitted to what a worker
// reports of its own steps.
#ifndef BATON_ROUTER_STEP_COST_H_
#define BATON_ROUTER_STEP_COST_H_

#include <algorithm>

namespace baton::router {

// Decayed least squares over the last reports. Unsynchronized.
class StepCost {
 public:
  // A step took so long, with that much context. REQUIRES: both >= 0 and finite.
  void Add(double context_tokens, double seconds) {
    constexpr double kKeep = 0.98;
    weight_ = weight_ * kKeep + 1;
    x_ = x_ * kKeep + context_tokens;
    y_ = y_ * kKeep + seconds;
    xx_ = xx_ * kKeep + context_tokens * context_tokens;
    xy_ = xy_ * kKeep + context_tokens * seconds;
  }

  // Of a step with that much context. Before any report, that of a middling machine, so that less
  // context is better.
  double Seconds(double context_tokens) const {
    if (weight_ == 0) return kBase_s + kSlope_s * context_tokens;
    const double mean_x = x_ / weight_, mean_y = y_ / weight_;
    const double variance = xx_ / weight_ - mean_x * mean_x;
    const double covariance = xy_ / weight_ - mean_x * mean_y;
    // While all reports are of about the same context, they say nothing of the slope; never more
    // than all of the time is due to the context, and none of it would be odd, too.
    double slope = mean_y * kSlope_s / (kBase_s + kSlope_s * mean_x);
    if (variance > 0.01 * mean_x * mean_x + 1) {
      slope = std::clamp(covariance / variance, 0.0, mean_x > 0 ? mean_y / mean_x : slope);
    }
    return std::max(0.0, mean_y + slope * (context_tokens - mean_x));
  }

 private:
  static constexpr double kBase_s = 10e-3;
  static constexpr double kSlope_s = 1e-7;

  double weight_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_STEP_COST_H_
