// A mean in which each new value has a fixed share.
#ifndef BATON_ROUTER_ROUTING_DECAYED_MEAN_H_
#define BATON_ROUTER_ROUTING_DECAYED_MEAN_H_

namespace baton::router {

// The plain mean until there are 1 / kShare values. Unsynchronized.
class DecayedMean {
 public:
  static constexpr double kShare = 0.02;

  void Add(double value) {
    weight_ = weight_ * (1 - kShare) + 1;
    mean_ += (value - mean_) / weight_;
  }
  // 0 before the first value.
  double value() const { return mean_; }
  bool empty() const { return weight_ == 0; }

 private:
  double weight_ = 0;
  double mean_ = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTING_DECAYED_MEAN_H_
