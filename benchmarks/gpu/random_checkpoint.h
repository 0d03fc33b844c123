// A Hugging Face directory of a shape, with weights that mean nothing.
#ifndef BATON_BENCHMARKS_GPU_RANDOM_CHECKPOINT_H_
#define BATON_BENCHMARKS_GPU_RANDOM_CHECKPOINT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "benchmarks/gpu/shapes.h"

namespace baton::gpu_bench {

// The destructor removes the checkpoint unless Keep() was called.
class RandomCheckpoint {
 public:
  // Makes a folder in `parent` and writes config.json and model.safetensors (bfloat16, quantised as
  // the shape says; one chunk of random numbers over and over) into it. UNAVAILABLE, naming the
  // file, if it cannot be written, a full disk included.
  static absl::StatusOr<std::unique_ptr<RandomCheckpoint>> Write(const ModelShape& shape,
                                                                 const std::string& parent);
  ~RandomCheckpoint();
  RandomCheckpoint(const RandomCheckpoint&) = delete;
  RandomCheckpoint& operator=(const RandomCheckpoint&) = delete;

  const std::string& folder() const { return folder_; }
  void Keep() { kept_ = true; }

 private:
  explicit RandomCheckpoint(std::string folder) : folder_(std::move(folder)) {}
  const std::string folder_;
  bool kept_ = false;
};

}  // namespace baton::gpu_bench

#endif  // BATON_BENCHMARKS_GPU_RANDOM_CHECKPOINT_H_
