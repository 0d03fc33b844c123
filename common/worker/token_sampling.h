// Sampling parameters between the proto files and the model room.
#ifndef BATON_COMMON_WORKER_TOKEN_SAMPLING_H_
#define BATON_COMMON_WORKER_TOKEN_SAMPLING_H_

#include "baton/internal/v1/decode.pb.h"
#include "common/model/sampler.h"

namespace baton::worker {

model::SamplingParams FromProto(const internal::v1::TokenSampling& sampling);
internal::v1::TokenSampling ToProto(const model::SamplingParams& params);

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_TOKEN_SAMPLING_H_
