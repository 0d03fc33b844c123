// What kv_plane_bench measures, as both of its processes see it.
#ifndef BATON_BENCHMARKS_KV_PLANE_WORK_H_
#define BATON_BENCHMARKS_KV_PLANE_WORK_H_

#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <vector>

#include "absl/types/span.h"
#include "baton/internal/v1/prefill.pb.h"
#include "benchmarks/kv_shapes.h"
#include "common/kv/block_pool.h"
#include "common/transfer/shared_pool.h"

namespace baton::benchmarks {

enum Plane { kMemcpy, kChecksum, kTcp, kStream, kGrpc, kShm, kShmUnchecked };
inline constexpr struct {
  Plane plane;
  const char* name;
  bool has_channels;
} kPlanes[] = {{kMemcpy, "memcpy", false},
               {kChecksum, "checksum", false},
               {kTcp, "tcp", false},
               {kStream, "stream", true},
               {kGrpc, "grpc", true},
               {kShm, "shm", true},
               {kShmUnchecked, "shm_unchecked", true}};

// One measurement: what to move, and how. It travels as the tokens of a PrefillRequest.
struct Work {
  Plane plane = kGrpc;
  int shape = 0;
  int frame_bytes = 0;
  int channels = 1;
  int blocks = 0;   // of all channels
  int channel = 0;  // which of them a call is

  kv::KvLayout layout() const { return LayoutOf(kKvShapes[shape]); }
  int64_t bytes() const { return layout().BlockBytes() * blocks; }
  int frame_blocks() const {
    return std::max<int>(1, static_cast<int>(frame_bytes / layout().ChunkBytes()));
  }
  backend::KvPool Pool(std::byte* base) const { return PoolAt(base, layout(), blocks); }
  std::vector<kv::BlockId> ChannelBlocks() const {
    std::vector<kv::BlockId> ids(static_cast<size_t>(blocks / channels));
    std::iota(ids.begin(), ids.end(), channel * (blocks / channels));
    return ids;
  }
  std::vector<int> ToInts() const { return {plane, shape, frame_bytes, channels, blocks, channel}; }
};

inline Work FromInts(const google::protobuf::RepeatedField<int32_t>& ints) {
  return {static_cast<Plane>(ints[0]), ints[1], ints[2], ints[3], ints[4], ints[5]};
}

// The slices of one frame, which point into the blocks.
inline std::vector<absl::Span<const char>> FrameSegments(const Work& work,
                                                         const backend::KvPool& pool, int layer,
                                                         absl::Span<const kv::BlockId> blocks) {
  std::vector<absl::Span<const char>> segments;
  for (const kv::BlockId block : blocks) {
    segments.emplace_back(reinterpret_cast<const char*>(pool.base) +
                              block * pool.block_stride_bytes + layer * pool.layer_stride_bytes,
                          work.layout().ChunkBytes());
  }
  return segments;
}

// Calls visit(layer, blocks of one frame) for all frames of a call.
template <class Visit>
void ForEachFrame(const Work& work, Visit visit) {
  const std::vector<kv::BlockId> blocks = work.ChannelBlocks();
  const size_t per_frame = static_cast<size_t>(work.frame_blocks());
  for (int layer = 0; layer < work.layout().layers; ++layer) {
    for (size_t begin = 0; begin < blocks.size(); begin += per_frame) {
      visit(layer, absl::MakeConstSpan(blocks).subspan(begin, per_frame));
    }
  }
}

// The sending process: starts it, before gRPC starts threads. It ends with its parent.
struct SenderProcess {
  pid_t pid = 0;
  struct Ends {
    int grpc_port = 0;
    int tcp_port = 0;
    struct Shared {
      char socket[64] = {};
      char token[transfer::kSocketTokenBytes] = {};
    };
    Shared shared[std::size(kKvShapes)];  // the pool as one of each shape
  } ends;
};
SenderProcess StartSender(int64_t pool_bytes);

}  // namespace baton::benchmarks

#endif  // BATON_BENCHMARKS_KV_PLANE_WORK_H_
