#include "common/backend/cuda/products/cuda_stopwatch.h"

#include <cuda_runtime.h>

#include "common/base/check.h"

namespace baton::backend::cuda {
namespace {

void Check(cudaError_t error, const char* call) {
  BATON_CHECK(error == cudaSuccess) << call << ": " << cudaGetErrorString(error);
}

class CudaStopwatch final : public Stopwatch {
 public:
  explicit CudaStopwatch(int index) : index_(index) {
    Use();
    Check(cudaEventCreate(&begin_), "cudaEventCreate");
    Check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~CudaStopwatch() override {
    Use();
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }

  double Time(Stream stream, absl::FunctionRef<void()> before,
              absl::FunctionRef<void()> work) override {
    Use();
    const auto cuda = static_cast<cudaStream_t>(stream);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    Check(cudaStreamIsCapturing(cuda, &capture), "cudaStreamIsCapturing");
    BATON_CHECK(capture == cudaStreamCaptureStatusNone) << "nothing is measured under capture";
    before();
    Check(cudaEventRecord(begin_, cuda), "cudaEventRecord");
    work();
    Check(cudaEventRecord(end_, cuda), "cudaEventRecord");
    Check(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  void Use() const { Check(cudaSetDevice(index_), "cudaSetDevice"); }

  const int index_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

std::unique_ptr<Stopwatch> MakeCudaStopwatch(int index) {
  return std::make_unique<CudaStopwatch>(index);
}

}  // namespace baton::backend::cuda
