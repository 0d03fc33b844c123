// Links between pools of one process, as DeviceLinks, which misbehave when they are told to.
#ifndef BATON_TESTS_TESTING_FAKE_DEVICE_LINKS_H_
#define BATON_TESTS_TESTING_FAKE_DEVICE_LINKS_H_

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/backend/device_link.h"
#include "common/backend/tensor.h"
#include "common/base/check.h"
#include "common/base/error.h"

namespace baton::testing {

// What goes wrong on one device. Operations are counted over all of its links, from 1.
struct DeviceLinkFaults {
  std::atomic<bool> refuses{false};         // Connect
  std::atomic<bool> never_connects{false};  // Poll stays kConnecting
  std::atomic<int> hangs_at{0};             // this operation and later ones of its link never end
  std::atomic<int> fails_at{0};             // this operation fails
  std::atomic<bool> abort_hangs{false};     // until `released`
  absl::Notification released;
  std::function<void()> on_store;  // called in the middle of a Store

  std::atomic<int> operations{0};
  std::atomic<int> stores{0};
  std::atomic<int> aborts{0};
  std::atomic<int> links{0};  // alive
};

class FakeDeviceLinks final : public backend::DeviceLinks,
                              public std::enable_shared_from_this<FakeDeviceLinks> {
 public:
  // `pool`: host memory, which outlives the links, as the faults do.
  FakeDeviceLinks(std::string device, const backend::KvPool& pool, DeviceLinkFaults& faults,
                  int most_chunks = 4, int most_links = 8)
      : device_(std::move(device)),
        pool_(pool),
        faults_(faults),
        most_chunks_(most_chunks),
        most_links_(most_links) {}

  std::string device() const override { return device_; }
  int version() const override { return version_; }
  void set_version(int version) { version_ = version; }
  int most_chunks() const override { return most_chunks_; }
  int most_links() const override { return most_links_; }
  absl::StatusOr<std::string> MakeId() override {
    static std::atomic<int> last{0};
    return absl::StrCat("id", ++last);
  }
  absl::StatusOr<std::unique_ptr<backend::DeviceLink>> Connect(const std::string& id,
                                                               int rank) override {
    if (faults_.refuses) {
      return MakeError(absl::StatusCode::kUnavailable, "DEVICE_LINK", "told to refuse");
    }
    if (faults_.links >= most_links_) {
      return MakeError(absl::StatusCode::kResourceExhausted, "DEVICE_LINK", "too many links");
    }
    return std::make_unique<Link>(shared_from_this(), Wire::Of(id), rank);
  }

 private:
  // What the two ends of an id share.
  struct Wire {
    static std::shared_ptr<Wire> Of(const std::string& id) {
      static absl::Mutex mutex;
      static auto& wires = *new std::map<std::string, std::weak_ptr<Wire>>;
      absl::MutexLock lock(&mutex);
      std::shared_ptr<Wire> wire = wires[id].lock();
      if (wire == nullptr) wires[id] = wire = std::make_shared<Wire>();
      return wire;
    }
    absl::Mutex mutex;
    bool there[2] ABSL_GUARDED_BY(mutex) = {false, false};
    std::optional<std::vector<std::byte>> sent ABSL_GUARDED_BY(mutex);  // not received yet
  };

  class Link final : public backend::DeviceLink {
   public:
    Link(std::shared_ptr<FakeDeviceLinks> device, std::shared_ptr<Wire> wire, int rank)
        : device_(std::move(device)), wire_(std::move(wire)), rank_(rank) {
      ++device_->faults_.links;
      absl::MutexLock lock(&wire_->mutex);
      wire_->there[rank] = true;
    }
    ~Link() override {
      BATON_CHECK(aborted_) << "a link goes without Abort";
      --device_->faults_.links;
    }

    State Poll() override {
      BATON_CHECK(!aborted_);
      if (state_ == State::kConnecting && !device_->faults_.never_connects) {
        absl::MutexLock lock(&wire_->mutex);
        if (wire_->there[0] && wire_->there[1]) state_ = State::kIdle;
      }
      if (state_ == State::kBusy && number_ == device_->faults_.fails_at) state_ = State::kFailed;
      if (state_ != State::kBusy || hangs_) return state_;
      absl::MutexLock lock(&wire_->mutex);
      if (sends_) {
        if (!handed_over_) {
          if (wire_->sent) return state_;
          wire_->sent = staging_;
          handed_over_ = true;
        }
        if (!wire_->sent) state_ = State::kIdle;
      } else if (wire_->sent) {
        BATON_CHECK_EQ(wire_->sent->size(), expected_bytes_) << "the ends mean other operations";
        staging_ = *std::move(wire_->sent);
        wire_->sent.reset();
        state_ = State::kIdle;
      }
      return state_;
    }
    absl::Status error() const override {
      return MakeError(absl::StatusCode::kUnavailable, "DEVICE_LINK", "told to fail");
    }

    void Send(backend::SlotRange slots, absl::Span<const int32_t> pages) override {
      const size_t bytes = static_cast<size_t>(slots.count) * chunk_bytes();
      SendStaging(slots.count * static_cast<int>(pages.size()));
      for (size_t i = 0; i < pages.size(); ++i) {
        std::memcpy(staging_.data() + i * bytes, Chunks(slots, pages[i]), bytes);
      }
    }
    void SendStaging(int chunk_count) override {
      Begin(static_cast<size_t>(chunk_count));
      sends_ = true;
      handed_over_ = false;
      staging_.resize(static_cast<size_t>(chunk_count) * chunk_bytes());
    }
    void Receive(int chunk_count) override {
      Begin(static_cast<size_t>(chunk_count));
      sends_ = false;
      expected_bytes_ = static_cast<size_t>(chunk_count) * chunk_bytes();
    }
    void Store(backend::SlotRange slots, absl::Span<const int32_t> pages) override {
      BATON_CHECK(state_ == State::kIdle && !sends_ && !aborted_);
      const size_t bytes = static_cast<size_t>(slots.count) * chunk_bytes();
      BATON_CHECK_EQ(staging_.size(), pages.size() * bytes);
      if (device_->faults_.on_store) device_->faults_.on_store();
      for (size_t i = 0; i < pages.size(); ++i) {
        std::memcpy(Chunks(slots, pages[i]), staging_.data() + i * bytes, bytes);
      }
      ++device_->faults_.stores;
    }
    void Abort() override {
      BATON_CHECK(!aborted_) << "aborted twice";
      if (device_->faults_.abort_hangs) device_->faults_.released.WaitForNotification();
      aborted_ = true;
      ++device_->faults_.aborts;
    }

   private:
    size_t chunk_bytes() const { return static_cast<size_t>(device_->pool_.layer_stride_bytes); }
    // Those of a page, one behind the other.
    std::byte* Chunks(backend::SlotRange slots, int32_t page) const {
      const backend::KvPool& pool = device_->pool_;
      BATON_CHECK(page >= 0 && page < pool.block_count) << "page " << page;
      BATON_CHECK(slots.first >= 0 && slots.count > 0 &&
                  (slots.first + slots.count) * pool.layer_stride_bytes <= pool.block_stride_bytes)
          << slots.count << " slots from " << slots.first << " on";
      return pool.base + page * pool.block_stride_bytes + slots.first * pool.layer_stride_bytes;
    }
    void Begin(size_t chunks) {
      BATON_CHECK(state_ == State::kIdle && !aborted_) << "an operation while one is in progress";
      BATON_CHECK(chunks >= 1 && chunks <= static_cast<size_t>(device_->most_chunks_)) << chunks;
      state_ = State::kBusy;
      number_ = ++device_->faults_.operations;
      const int hangs_at = device_->faults_.hangs_at;
      hangs_ = hangs_ || (hangs_at != 0 && number_ >= hangs_at);
    }

    const std::shared_ptr<FakeDeviceLinks> device_;
    const std::shared_ptr<Wire> wire_;
    const int rank_;
    State state_ = State::kConnecting;
    int number_ = 0;
    bool hangs_ = false;
    bool sends_ = false;
    bool handed_over_ = false;
    size_t expected_bytes_ = 0;
    std::vector<std::byte> staging_;
    std::atomic<bool> aborted_{false};
  };

  const std::string device_;
  const backend::KvPool pool_;
  DeviceLinkFaults& faults_;
  const int most_chunks_;
  const int most_links_;
  int version_ = 22809;
};

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_FAKE_DEVICE_LINKS_H_
