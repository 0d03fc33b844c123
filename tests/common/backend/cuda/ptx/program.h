// PTX as nvcc writes it, decoded for machine.h: text to instructions whose operands are places in a
// warp's registers. Source of the syntax and of each instruction's meaning: PTX ISA 9.0.
//
// Only what nvcc makes of Baton's kernels is known. Anything else, and any operand of another size
// than the instruction's, is a CHECK with the line.
#ifndef BATON_TESTS_COMMON_BACKEND_CUDA_PTX_PROGRAM_H_
#define BATON_TESTS_COMMON_BACKEND_CUDA_PTX_PROGRAM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace baton::backend::cuda::ptx {

class WarpState;
struct Instruction;
// Carries out an instruction in the lanes of `mask`.
using Handler = void (*)(WarpState& warp, const Instruction& instruction, uint32_t mask);

enum class Flow : uint8_t {
  kNext,
  kBranch,
  kExit,  // ret
  kTrap,
  kBarrier,   // bar.sync: the block meets
  kTogether,  // the warp meets: shfl.sync, mma.sync, ldmatrix
};

// Registers hold a value for each lane, one after another: 32 times 2, 4 or 8 bytes. A predicate is
// four bytes, a bit a lane.
struct Instruction {
  Handler handler = nullptr;
  Flow flow = Flow::kNext;
  bool is_label = false;  // a branch may come here
  bool is_predicated = false, negated = false;
  uint32_t predicate = 0;
  std::array<uint32_t, 4> to = {};     // places of results
  std::array<uint32_t, 10> from = {};  // places of operands
  int64_t offset = 0;                  // of an address
  uint32_t target = 0;                 // of a branch
  uint8_t vector = 1;                  // elements of a load or store
  int line = 0;                        // in the module's text
};

struct Constant {
  uint32_t place = 0;
  int bytes = 4;
  uint64_t value = 0;
};

enum class Special : uint8_t {
  kTidX,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNtidX,
  kNctaidX,
  kNctaidY,
  kNctaidZ
};

struct Kernel {
  std::string name;  // demangled
  int max_threads = 0;
  size_t parameter_bytes = 0;
  size_t static_shared_bytes = 0;  // where dynamic shared memory begins
  uint32_t register_bytes = 0;
  std::vector<Constant> constants;
  std::vector<std::pair<uint32_t, Special>> specials;
  std::vector<Instruction> code;
  bool has_flags = false;  // a fence: blocks speak with each other
};

class Program {
 public:
  // Adds a module's kernels.
  void Add(absl::string_view ptx);
  // Null if there is none of the demangled name.
  const Kernel* Find(const std::string& name) const;
  const std::map<std::string, Kernel>& kernels() const { return kernels_; }

 private:
  friend class ModuleParser;
  std::map<std::string, Kernel> kernels_;
  std::vector<std::unique_ptr<std::byte[]>> tables_;  // .global constants
};

std::string Demangle(const std::string& name);

}  // namespace baton::backend::cuda::ptx

#endif  // BATON_TESTS_COMMON_BACKEND_CUDA_PTX_PROGRAM_H_
