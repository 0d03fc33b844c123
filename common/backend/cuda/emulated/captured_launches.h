// Graphs of emulated devices: the recorded launches of a stream.
#ifndef BATON_COMMON_BACKEND_CUDA_EMULATED_CAPTURED_LAUNCHES_H_
#define BATON_COMMON_BACKEND_CUDA_EMULATED_CAPTURED_LAUNCHES_H_

#include <functional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda::emulated {

class CapturedLaunches final : public LaunchQueue {
 public:
  // The launches of `enqueue` on `stream`. REQUIRES: no other thread launches on it meanwhile.
  static std::vector<std::function<void()>> Capture(EmulatedStream& stream,
                                                    absl::FunctionRef<void()> enqueue) {
    CapturedLaunches captured;
    LaunchQueue* const before = std::exchange(stream.queue, &captured);
    enqueue();
    stream.queue = before;
    return std::move(captured.launches_);
  }

 private:
  void Enqueue(const LaunchShape&, std::function<void()> run) override {
    launches_.push_back(std::move(run));
  }

  std::vector<std::function<void()>> launches_;
};

}  // namespace baton::backend::cuda::emulated

#endif  // BATON_COMMON_BACKEND_CUDA_EMULATED_CAPTURED_LAUNCHES_H_
