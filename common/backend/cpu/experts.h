// A layer's experts on all threads: Backend::Experts.
#ifndef BATON_COMMON_BACKEND_CPU_EXPERTS_H_
#define BATON_COMMON_BACKEND_CPU_EXPERTS_H_

#include <cstdint>
#include <vector>

#include "common/backend/backend.h"
#include "common/backend/cpu/kernels.h"
#include "common/backend/cpu/matmul.h"
#include "common/backend/cpu/thread_pool.h"
#include "common/backend/experts.h"

namespace baton::backend {

// One expert after the other, in their order, so each row's sum has one order whatever the batch;
// an expert that no row has chosen is not read.
//
// Thread: as the backend that owns it.
class ExpertsRunner {
 public:
  ExpertsRunner(const Kernels& kernels, ThreadPool& pool, MatMulRunner& matmul)
      : kernels_(kernels), pool_(pool), matmul_(matmul) {}

  void Run(const ExpertsArgs& args);

 private:
  // Sets chosen_, by rows, and rows_, by experts.
  void Route(const ExpertsArgs& args);
  // Adds an expert's results to those of its rows.
  void RunExpert(const ExpertsArgs& args, size_t expert);

  struct RoutedRow {
    int64_t row = 0;
    float weight = 0;
  };

  const Kernels& kernels_;
  ThreadPool& pool_;
  MatMulRunner& matmul_;
  std::vector<ChosenExpert> chosen_;  // [rows, per_token]
  std::vector<std::vector<RoutedRow>> rows_;
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_EXPERTS_H_
