#include "common/backend/cuda/products/cuda_stopwatch.h"

#include <cuda_runtime.h>

#include "common/base/check.h"

namespace baton::backend::cuda {
namespace {

void CheckCall(cudaError_t error, const char* call) {
  BATON_CHECK(error == cudaSuccess) << call << ": " << cudaGetErrorString(error);
}

class CudaStopwatch final : public Stopwatch {
 public:
  explicit CudaStopwatch(int index) : index_(index) {
    Use();
    CheckCall(cudaEventCreate(&begin_), "cudaEventCreate");
    CheckCall(cudaEventCreate(&end_), "cudaEventCreate");
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
    CheckCall(cudaStreamIsCapturing(cuda, &capture), "cudaStreamIsCapturing");
    BATON_CHECK(capture == cudaStreamCaptureStatusNone) << "nothing is measured under capture";
    before();
    CheckCall(cudaEventRecord(begin_, cuda), "cudaEventRecord");
    work();
    CheckCall(cudaEventRecord(end_, cuda), "cudaEventRecord");
    CheckCall(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds = 0;
    CheckCall(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  void Use() const { CheckCall(cudaSetDevice(index_), "cudaSetDevice"); }

  const int index_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

std::unique_ptr<Stopwatch> MakeCudaStopwatch(int index) {
  return std::make_unique<CudaStopwatch>(index);
}

}  // namespace baton::backend::cuda
