// Clusters whose workers compute on paced devices: tests/testing/paced_backend.h, paced_gpu.h.
#ifndef BATON_BENCHMARKS_SERVING_PACED_PROGRAMS_H_
#define BATON_BENCHMARKS_SERVING_PACED_PROGRAMS_H_

#include <memory>
#include <string>

#include "tests/testing/model_dir.h"

namespace baton::benchmarks {

// A directory of a cluster's programs for ClusterOptions.bin_dir, in which the workers are
// PREFIX-prefill-worker and PREFIX-decode-worker. bin_dir: where they all are; empty: where this
// program is. The benchmark ends if one is not built.
std::unique_ptr<testing::ModelDir> PacedPrograms(const std::string& bin_dir,
                                                 const std::string& prefix);

}  // namespace baton::benchmarks

#endif  // BATON_BENCHMARKS_SERVING_PACED_PROGRAMS_H_
