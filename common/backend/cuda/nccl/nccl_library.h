// What Baton calls of NCCL. The library is loaded on first use and not linked: it has 200 MB, which
// most workers do not need. An interface, so that tests can do without a GPU.
#ifndef BATON_COMMON_BACKEND_CUDA_NCCL_NCCL_LIBRARY_H_
#define BATON_COMMON_BACKEND_CUDA_NCCL_NCCL_LIBRARY_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

// Communicators of two ranks that never block (ncclConfig_t.blocking = 0): what is begun goes on in
// the background until Done says so. On the device that is current on the calling thread.
//
// Errors are UNAVAILABLE (NCCL) with the name of the call and NCCL's own words.
// Thread-safe; a communicator is used by one thread at a time.
class NcclLibrary {
 public:
  using Communicator = void*;  // ncclComm_t
  // Before 2.26, several communicators on one device need one order of launches over all processes;
  // likewise with drivers before CUDA 12.3, which a program of CUDA 13 refuses.
  static constexpr int kOldestVersion = 22600;

  virtual ~NcclLibrary() = default;
  virtual int version() const = 0;  // as NCCL_VERSION: 22809 for 2.28.9
  virtual absl::StatusOr<std::string> MakeId() = 0;
  // Begins to connect. INVALID_ARGUMENT if `id` is none.
  virtual absl::StatusOr<Communicator> Connect(const std::string& id, int rank) = 0;
  // Whether what was begun last is done: for Send and Receive, that it is enqueued on the stream.
  virtual absl::StatusOr<bool> Done(Communicator communicator) = 0;
  // REQUIRES: what was begun before is done.
  virtual absl::Status Send(Communicator communicator, const void* device, size_t size_bytes,
                            int peer, Stream stream) = 0;
  virtual absl::Status Receive(Communicator communicator, void* device, size_t size_bytes, int peer,
                               Stream stream) = 0;
  // Ends what is in progress and frees the communicator. May block.
  virtual void Abort(Communicator communicator) = 0;
};

// Loads it once, until the process ends. FAILED_PRECONDITION (NCCL), with the loader's message, for
// a library that is missing or too old, and for a build without NCCL's header. Thread-safe.
//
// Sets NCCL_LAUNCH_ORDER_IMPLICIT=1 and NCCL_CUMEM_ENABLE=0 in the environment, unless they are
// set: call it before other threads read the environment.
absl::StatusOr<NcclLibrary*> LoadNccl();

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_NCCL_NCCL_LIBRARY_H_
