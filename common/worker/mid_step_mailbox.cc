#include "common/worker/mid_step_mailbox.h"

#include "common/base/check.h"
#include "common/base/named_thread.h"

namespace baton::worker {

MidStepMailbox::MidStepMailbox(std::shared_ptr<Mailbox> mailbox, bool own_thread)
    : mailbox_(std::move(mailbox)), own_thread_(own_thread) {
  if (own_thread_) thread_ = NamedThread("mid-step", [this] { Run(); });
}

MidStepMailbox::~MidStepMailbox() { BATON_CHECK(!thread_.joinable()) << "not stopped"; }

void MidStepMailbox::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    BATON_CHECK(!in_step_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

bool MidStepMailbox::Post(Message message) {
  auto posted = std::make_shared<Posted>();
  posted->message = std::move(message);
  if (!own_thread_) {
    return mailbox_->Post([posted] { Handle(*posted, /*mid_step=*/false); });
  }
  // The lock is held, so that both have messages in one order.
  absl::MutexLock lock(&mutex_);
  const bool open = mailbox_->Post([this, posted] {
    Handle(*posted, /*mid_step=*/false);
    absl::MutexLock pruning(&mutex_);
    Prune();
  });
  if (open) posted_.push_back(std::move(posted));
  return open;
}

void MidStepMailbox::Handle(Posted& posted, bool mid_step) {
  if (posted.message == nullptr) return;
  Message message = std::move(posted.message);
  posted.message = nullptr;
  message(mid_step);
}

void MidStepMailbox::Prune() {
  while (!posted_.empty() && posted_.front()->message == nullptr) posted_.pop_front();
}

void MidStepMailbox::Begin() {
  absl::MutexLock lock(&mutex_);
  in_step_ = true;
}

void MidStepMailbox::End() {
  absl::MutexLock lock(&mutex_);
  in_step_ = false;
  mutex_.Await(absl::Condition(this, &MidStepMailbox::IsIdle));
}

void MidStepMailbox::Run() {
  while (true) {
    std::deque<std::shared_ptr<Posted>> taken;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &MidStepMailbox::HasWork));
      if (stopping_) return;
      taken.swap(posted_);
      handling_ = true;
    }
    for (const std::shared_ptr<Posted>& posted : taken) Handle(*posted, /*mid_step=*/true);
    handled_ = true;
    absl::MutexLock lock(&mutex_);
    handling_ = false;
  }
}

}  // namespace baton::worker
