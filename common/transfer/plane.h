// How KV crosses from one worker to another.
#ifndef BATON_COMMON_TRANSFER_PLANE_H_
#define BATON_COMMON_TRANSFER_PLANE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace baton::transfer {

// The KV of a frame of several layers, named or its payload, has at most so many bytes.
inline constexpr int64_t kMostRunBytes = 8 << 20;

enum class Plane {
  kGrpc,  // as payloads of frames
  kShm,   // read from the sender's pool, in shared memory
  kIpc,   // read from the sender's pool in device memory, by the receiver's device
  kNccl,  // as operations of a device link
};

// Label `transport` of metrics.
inline const char* Name(Plane plane) {
  switch (plane) {
    case Plane::kShm:
      return "shm";
    case Plane::kIpc:
      return "ipc";
    case Plane::kNccl:
      return "nccl";
    case Plane::kGrpc:
      break;
  }
  return "grpc";
}
inline std::vector<std::string> PlaneNames() {
  return {Name(Plane::kGrpc), Name(Plane::kShm), Name(Plane::kIpc), Name(Plane::kNccl)};
}

}  // namespace baton::transfer

#endif  // BATON_COMMON_TRANSFER_PLANE_H_
