// The tests of kernels on what nvcc made of them: with BATON_PTX=DIRECTORY in the environment,
// launches of the emulation run the PTX of DIRECTORY/*-75.ptx or *-ARCHITECTURE.ptx
// (BATON_PTX_ARCHITECTURE, 80 if it is not set) as the test's machine has capability 7.5 or 8.0. At
// the end of the process, a line "interpreted COUNT launches of KERNEL at sm_XX" for each kernel.
#ifndef BATON_TESTS_COMMON_BACKEND_CUDA_PTX_INTERPRETER_H_
#define BATON_TESTS_COMMON_BACKEND_CUDA_PTX_INTERPRETER_H_

#include <map>
#include <memory>
#include <string>

#include "common/backend/cuda/simt/simt.h"
#include "tests/common/backend/cuda/ptx/machine.h"

namespace baton::backend::cuda::ptx {

class Interpreter final : public emulated::KernelRunner {
 public:
  // `programs`: by architecture; those of the capabilities that are asked for.
  Interpreter(std::map<int, Program> programs, MachineOptions options);
  ~Interpreter() override;
  void Run(const emulated::LaunchShape& shape, const emulated::Options& options, const void* kernel,
           const void* arguments, size_t argument_bytes) override;

 private:
  struct Device {
    explicit Device(Program made, MachineOptions options)
        : program(std::move(made)), machine(program, options) {}
    const Program program;
    Machine machine;
    std::map<std::string, int> launches;
  };
  std::map<int, std::unique_ptr<Device>> devices_;  // by architecture
};

}  // namespace baton::backend::cuda::ptx

#endif  // BATON_TESTS_COMMON_BACKEND_CUDA_PTX_INTERPRETER_H_
