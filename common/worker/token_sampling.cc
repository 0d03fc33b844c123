#include "common/worker/token_sampling.h"

namespace baton::worker {

model::SamplingParams FromProto(const internal::v1::TokenSampling& sampling) {
  model::SamplingParams params;
  params.temperature = sampling.temperature();
  params.top_p = sampling.top_p();
  params.top_k = sampling.top_k();
  params.min_p = sampling.min_p();
  params.seed = sampling.seed();
  params.choice = sampling.choice();
  return params;
}

internal::v1::TokenSampling ToProto(const model::SamplingParams& params) {
  internal::v1::TokenSampling sampling;
  sampling.set_temperature(params.temperature);
  sampling.set_top_p(params.top_p);
  sampling.set_top_k(params.top_k);
  sampling.set_min_p(params.min_p);
  sampling.set_seed(params.seed);
  sampling.set_choice(params.choice);
  return sampling;
}

}  // namespace baton::worker
