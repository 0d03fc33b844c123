// The ways in which KV moves from a prefill to a decode worker.
#ifndef BATON_COMMON_TRANSFER_KV_PLANE_H_
#define BATON_COMMON_TRANSFER_KV_PLANE_H_

namespace baton::transfer {

enum class KvPlane {
  kGrpc,  // as payloads of frames
  kShm,   // read from the prefill worker's pool in host memory
  kIpc,   // read from its pool in device memory, by the decode worker's device
};

// Label `transport` of metrics.
constexpr const char* Name(KvPlane plane) {
  return plane == KvPlane::kGrpc ? "grpc" : plane == KvPlane::kShm ? "shm" : "ipc";
}

}  // namespace baton::transfer

#endif  // BATON_COMMON_TRANSFER_KV_PLANE_H_
