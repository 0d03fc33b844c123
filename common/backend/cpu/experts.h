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

// Experts in their order, as many at once as the scratch has rows for, so each row's sum has one
// order whatever the batch; an expert that no row has chosen is not read.
//
// Thread: as the backend that owns it.
class ExpertsRunner {
 public:
  ExpertsRunner(const Kernels& kernels, ThreadPool& pool, MatMulRunner& matmul)
      : kernels_(kernels), pool_(pool), matmul_(matmul) {}

  void Run(const ExpertsArgs& args);

 private:
  // The rows of one expert are places [first, first + count) of its turn.
  struct Turn {
    size_t expert = 0;
    int64_t first = 0, count = 0;
  };

  // Sets chosen_, by rows, and counts_, by experts.
  void Route(const ExpertsArgs& args);
  // Computes the experts of turns_, which have `places` rows in all, and adds their results to
  // those of their rows.
  void RunTurns(const ExpertsArgs& args, int64_t places);

  const Kernels& kernels_;
  ThreadPool& pool_;
  MatMulRunner& matmul_;
  std::vector<ChosenExpert> chosen_;  // [rows, per_token]
  std::vector<int64_t> counts_;       // [experts], of rows that chose it
  std::vector<Turn> turns_;
  // RunTurns sets both; -1 stands for what is not computed in these turns.
  std::vector<int64_t> next_;    // [experts], the place of the next row of each
  std::vector<int64_t> places_;  // [rows, per_token], the place of each choice
  std::vector<MatMulProduct> products_;
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_EXPERTS_H_
