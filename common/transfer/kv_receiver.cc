#include "common/transfer/kv_receiver.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace baton::transfer {
namespace {

constexpr struct {
  AbortReason reason;
  const char* name;
  const char* error;
} kReasons[] = {
    {AbortReason::kPeerLost, "peer_lost", "PREFILL_LOST"},
    {AbortReason::kRefused, "refused", "DRAINING"},
    {AbortReason::kFailed, "failed", "NON_FINITE_LOGITS"},
    {AbortReason::kChecksum, "checksum", "CHECKSUM"},
    {AbortReason::kLayout, "layout", "KV_LAYOUT"},
    {AbortReason::kEpoch, "epoch", "STALE_EPOCH"},
    {AbortReason::kProtocol, "protocol", "PROTOCOL"},
    {AbortReason::kTimeout, "timeout", "DEADLINE"},
    {AbortReason::kCancelled, "cancelled", "CANCELLED"},
};

constexpr double kMostMilliseconds = 1e9;  // eleven days

}  // namespace

absl::Status ProtocolError(absl::string_view message) {
  return MakeError(absl::StatusCode::kDataLoss, "PROTOCOL", absl::StrCat("KV transfer: ", message));
}

const char* Name(AbortReason reason) {
  for (const auto& row : kReasons) {
    if (row.reason == reason) return row.name;
  }
  return "protocol";
}

std::vector<std::string> AbortReasonNames() {
  std::vector<std::string> names;
  for (const auto& row : kReasons) names.emplace_back(row.name);
  return names;
}

AbortReason AbortReasonOf(const absl::Status& status) {
  const std::string error = ErrorReason(status);
  for (const auto& row : kReasons) {
    if (error == row.error) return row.reason;
  }
  switch (status.code()) {
    case absl::StatusCode::kCancelled:
      return AbortReason::kCancelled;
    case absl::StatusCode::kDeadlineExceeded:
      return AbortReason::kTimeout;
    case absl::StatusCode::kDataLoss:
      return AbortReason::kProtocol;
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
      return AbortReason::kRefused;
    case absl::StatusCode::kInternal:  // without a reason it is the transport that speaks
      return error.empty() ? AbortReason::kPeerLost : AbortReason::kFailed;
    default:
      return AbortReason::kPeerLost;
  }
}

KvReceiver::KvReceiver(TransferPlan plan)
    : shared_pool_(std::move(plan.shared_pool)),
      plan_(std::move(plan)),
      block_count_(plan_.fetch ? 0 : planned_blocks()),
      received_(static_cast<size_t>(int64_t{planned_blocks()} * plan_.layout.layers), false),
      expected_(received_.size(), false),
      missing_(ChunksToCome()) {}

int KvReceiver::FirstIndex(int layer) const {
  const int end = plan_.first_block + block_count_;
  const int whole = plan_.fetch || plan_.whole_blocks < 0 ? end : plan_.whole_blocks;
  return std::clamp(plan_.layout.FirstNeededBlock(layer, whole, end) - plan_.first_block, 0,
                    block_count_);
}

int64_t KvReceiver::ChunksToCome() const {
  int64_t chunks = 0;
  for (int layer = 0; layer < plan_.layout.layers; ++layer) {
    chunks += block_count_ - FirstIndex(layer);
  }
  return chunks;
}

absl::Status KvReceiver::OnFrame(const internal::v1::PrefillFrame& frame, const Segments& payload) {
  if (phase_ == Phase::kCommitted || phase_ == Phase::kAborted) {
    return ProtocolError("a frame came after the transfer's end");
  }
  const absl::Duration arrived_at = plan_.link ? plan_.link->Now() : absl::ZeroDuration();
  int64_t bytes;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    const int64_t bytes_before = summary_.kv_bytes;
    status = CheckAndApply(frame, payload);
    bytes = summary_.kv_bytes - bytes_before;
  }
  if (!status.ok()) {
    Abort();
    return status;
  }
  if (phase_ == Phase::kReserved) phase_ = Phase::kReceiving;
  // An operation whose chunk has come as a payload must not write it again.
  if (phase_ == Phase::kCommitted) Abort();
  if (plan_.link == nullptr) return status;
  plan_.link->OnKv(arrived_at, bytes, bytes > 0 && last_was_ready_);
  if (phase_ == Phase::kCommitted) plan_.link->Committed();
  return status;
}

void KvReceiver::Abort() {
  if (phase_ != Phase::kCommitted) phase_ = Phase::kAborted;
  if (plan_.device_link != nullptr) plan_.device_link->Forget(plan_.transfer_id);
  ReleaseShared();
}

void KvReceiver::ReleaseShared() {
  // Dropped, too: what has ended keeps no pool that its prefill worker means to free.
  if (const std::shared_ptr<SharedPool> pool = std::move(shared_pool_)) {
    pool->Release(plan_.transfer_id);
  }
}

absl::Status KvReceiver::CheckAndApply(const internal::v1::PrefillFrame& frame,
                                       const Segments& payload) {
  // The checksum first: where it fails, no field says anything.
  if (const uint64_t checksum = FrameChecksum(frame, payload); checksum != frame.checksum()) {
    return MakeError(absl::StatusCode::kDataLoss, "CHECKSUM",
                     absl::StrCat("KV frame has checksum ", absl::Hex(frame.checksum()),
                                  ", its content ", absl::Hex(checksum)));
  }
  if (frame.transfer_id() != plan_.transfer_id) {
    return ProtocolError(absl::StrCat("a frame of transfer ", absl::Hex(frame.transfer_id()),
                                      " came into transfer ", absl::Hex(plan_.transfer_id)));
  }
  if (frame.epoch() != plan_.sender_epoch) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "STALE_EPOCH",
                     absl::StrCat("KV frame of prefill epoch ", absl::Hex(frame.epoch()),
                                  ", expected ", absl::Hex(plan_.sender_epoch)));
  }
  if (!frame.has_kv_chunk() && !payload.empty()) {
    return ProtocolError("a frame other than a KV chunk has a payload");
  }
  switch (frame.frame_case()) {
    case internal::v1::PrefillFrame::kAccepted:
      return OnAccepted(frame.accepted());
    case internal::v1::PrefillFrame::kKvChunk:
      return OnKvChunk(frame, payload);
    case internal::v1::PrefillFrame::kFirstToken:
      return OnFirstToken(frame.first_token());
    case internal::v1::PrefillFrame::kCommit:
      return OnCommit(frame.commit());
    case internal::v1::PrefillFrame::kPromptLogprobs:
      return OnPromptLogprobs(frame.prompt_logprobs());
    case internal::v1::PrefillFrame::FRAME_NOT_SET:
      break;
  }
  return ProtocolError("a frame of an unknown kind");
}

absl::Status KvReceiver::OnAccepted(const internal::v1::PrefillFrame::Accepted& accepted) {
  if (accepted_) return ProtocolError("accepted twice");
  if (accepted.kv_layout_fingerprint() != plan_.layout.Fingerprint()) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "KV_LAYOUT",
        absl::StrCat("the sender has KV layout ", absl::Hex(accepted.kv_layout_fingerprint()),
                     ", expected ", absl::Hex(plan_.layout.Fingerprint()), " (",
                     plan_.layout.ToString(), ")"));
  }
  const int most = planned_blocks();
  const int least = plan_.fetch ? 0 : most;
  const bool partial = accepted.block_count() > 0 && accepted.block_count() < most;
  if (accepted.block_count() < least || accepted.block_count() > most ||
      (partial && plan_.layout.windowed())) {
    return ProtocolError(absl::StrCat("the sender means to send ", accepted.block_count(),
                                      " blocks, expected ", least,
                                      plan_.layout.windowed() ? " or " : " to ", most));
  }
  const int64_t whole = (int64_t{plan_.first_block} + most) * plan_.layout.block_tokens;
  if (accepted.cached_prompt_tokens() < 0 || accepted.cached_prompt_tokens() > whole) {
    return ProtocolError(absl::StrCat(accepted.cached_prompt_tokens(),
                                      " tokens of the prompt were cached, expected 0 to ", whole));
  }
  if (accepted.has_shared_memory() && plan_.on_offer) {
    plan_.on_offer({accepted.shared_memory().socket(), accepted.shared_memory().token(),
                    accepted.shared_memory().device()});
  }
  if (accepted.device_link() && plan_.on_device_link_offer) plan_.on_device_link_offer();
  accepted_ = true;
  block_count_ = accepted.block_count();
  if (plan_.fetch) missing_ = ChunksToCome();
  summary_.block_count = block_count_;
  summary_.cached_prompt_tokens = accepted.cached_prompt_tokens();
  return absl::OkStatus();
}

absl::Status KvReceiver::CheckLogprobs(const v1::TokenLogprobs& logprobs, int32_t token_id,
                                       int top) const {
  if (logprobs.token_id() != token_id) {
    return ProtocolError(
        absl::StrCat("log probability of token ", logprobs.token_id(), ", expected of ", token_id));
  }
  // A vocabulary may be smaller than the requested count.
  if (logprobs.top_size() != std::min(top, plan_.token_count)) {
    return ProtocolError(absl::StrCat("token ", token_id, " came with ", logprobs.top_size(),
                                      " alternatives, expected ",
                                      std::min(top, plan_.token_count)));
  }
  bool sane = std::isfinite(logprobs.logprob()) && logprobs.logprob() <= 0;
  for (const v1::TokenLogprob& other : logprobs.top()) {
    sane = sane && std::isfinite(other.logprob()) && other.logprob() <= 0 &&
           other.token_id() >= 0 && other.token_id() < plan_.token_count;
  }
  if (sane) return absl::OkStatus();
  return ProtocolError(absl::StrCat("log probabilities of token ", token_id,
                                    " that are above 0, no numbers, or of tokens outside 0 to ",
                                    plan_.token_count));
}

absl::Status KvReceiver::OnPromptLogprobs(const internal::v1::PrefillFrame::PromptLogprobs& frame) {
  if (first_token_) return ProtocolError("log probabilities of the prompt behind the first token");
  const size_t known = prompt_logprobs_.size();
  const int64_t expected_position = static_cast<int64_t>(known) + 1;
  if (frame.first_position() != expected_position || frame.logprobs_size() < 1 ||
      known + static_cast<size_t>(frame.logprobs_size()) > plan_.prompt_targets.size()) {
    return ProtocolError(absl::StrCat("log probabilities of positions ", frame.first_position(),
                                      " to ",
                                      int64_t{frame.first_position()} + frame.logprobs_size(),
                                      " of the prompt, expected some of ", expected_position,
                                      " to ", plan_.prompt_targets.size() + 1));
  }
  for (const v1::TokenLogprobs& logprobs : frame.logprobs()) {
    const int32_t target = plan_.prompt_targets[prompt_logprobs_.size()];
    BATON_RETURN_IF_ERROR(CheckLogprobs(logprobs, target, plan_.prompt_logprobs));
    prompt_logprobs_.push_back(logprobs);
  }
  return absl::OkStatus();
}

absl::Status KvReceiver::OnFirstToken(const internal::v1::PrefillFrame::FirstToken& first) {
  if (plan_.fetch) return ProtocolError("a first token among fetched blocks");
  if (first_token_) return ProtocolError("two first tokens");
  if (first.token_id() < 0 || first.token_id() >= plan_.token_count) {
    return ProtocolError(
        absl::StrCat("first token ", first.token_id(), " is outside 0 to ", plan_.token_count));
  }
  if (prompt_logprobs_.size() != plan_.prompt_targets.size()) {
    return ProtocolError(absl::StrCat("a first token behind ", prompt_logprobs_.size(), " of ",
                                      plan_.prompt_targets.size(),
                                      " log probabilities of the prompt"));
  }
  if (plan_.logprobs) {
    BATON_RETURN_IF_ERROR(CheckLogprobs(first.logprobs(), first.token_id(), *plan_.logprobs));
  }
  first_token_.emplace();
  first_token_->token_id = first.token_id();
  first_token_->cached_prompt_tokens = summary_.cached_prompt_tokens;
  if (plan_.logprobs) first_token_->logprobs = first.logprobs();
  first_token_->prompt_logprobs = std::move(prompt_logprobs_);
  return absl::OkStatus();
}

absl::Status KvReceiver::OnCommit(const internal::v1::PrefillFrame::Commit& commit) {
  if (!accepted_ || first_token_.has_value() == plan_.fetch || missing_ != 0 ||
      commit.kv_chunk_count() != kv_chunk_count_) {
    return ProtocolError(absl::StrCat("commit of ", commit.kv_chunk_count(), " chunks after ",
                                      kv_chunk_count_, "; ", missing_, " of ", ChunksToCome(),
                                      " layer blocks are missing, ",
                                      first_token_ ? "with" : "without", " a first token"));
  }
  for (const double ms : {commit.queue_ms(), commit.prefill_ms()}) {
    if (ms >= 0 && ms <= kMostMilliseconds) continue;  // not so if it is no number
    return ProtocolError(
        absl::StrCat("commit with a time of ", ms, " ms, expected 0 to ", kMostMilliseconds));
  }
  summary_.queue_ms = commit.queue_ms();
  summary_.prefill_ms = commit.prefill_ms();
  phase_ = Phase::kCommitted;
  return absl::OkStatus();
}

}  // namespace baton::transfer
