// What each PTX instruction does to the registers of a warp. See program.h.
#ifndef BATON_TESTS_COMMON_BACKEND_CUDA_PTX_OPERATIONS_H_
#define BATON_TESTS_COMMON_BACKEND_CUDA_PTX_OPERATIONS_H_

#include <string>
#include <vector>

#include "tests/common/backend/cuda/ptx/program.h"

namespace baton::backend::cuda::ptx {

// Size of an operand of a register: bytes of a lane, or kPredicate.
inline constexpr int kPredicate = 0;

struct Operation {
  Handler handler = nullptr;
  std::vector<int> to, from;
  Flow flow = Flow::kNext;
};

// Of an opcode with its suffixes that neither branches nor touches memory, e.g. "add.s32"; null if
// unknown.
const Operation* FindOperation(const std::string& opcode);

// Loads and stores: `type` of memory ("u32"), the register's size. `space`: "global", "shared",
// "param".
struct MemoryOperation {
  Handler handler = nullptr;
  int bytes = 0;  // of an element in memory
};
MemoryOperation FindLoad(const std::string& space, bool read_only, const std::string& type,
                         int register_bytes);
MemoryOperation FindStore(const std::string& space, const std::string& type, int register_bytes);
// "atom.global.add.u32"; {} if unknown. An operand of `bytes` bytes.
MemoryOperation FindAtomic(const std::string& opcode);

}  // namespace baton::backend::cuda::ptx

#endif  // BATON_TESTS_COMMON_BACKEND_CUDA_PTX_OPERATIONS_H_
