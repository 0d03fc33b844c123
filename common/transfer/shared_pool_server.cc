#include "common/transfer/shared_pool_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/named_thread.h"
#include "common/base/random_id.h"
#include "common/base/status_macros.h"
#include "common/transfer/host_sockets.h"

namespace baton::transfer {
namespace {

constexpr absl::Duration kHelloTimeout = absl::Seconds(2);
constexpr absl::Duration kAcceptAgain = absl::Seconds(1);

absl::Status SystemError(absl::string_view what) {
  return MakeError(absl::StatusCode::kUnavailable, "SHARED_MEMORY",
                   absl::StrCat("sharing the KV pool: ", what, ": ", std::strerror(errno)));
}

// In a time that does not depend on where they differ.
bool SameToken(const char* a, const char* b) {
  int difference = 0;
  for (size_t i = 0; i < kSocketTokenBytes; ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

}  // namespace

class SharedPoolServer::Handle final : public ReadLease {
 public:
  Handle(std::shared_ptr<Link> link, int slot, uint64_t number)
      : link_(std::move(link)), slot_(slot), number_(number) {}
  ~Handle() override {
    absl::MutexLock lock(&link_->mutex);
    if (link_->server != nullptr) link_->server->StreamEnded(number_);
  }
  bool Keep(std::shared_ptr<const PinnedBlocks> blocks) override {
    absl::MutexLock lock(&link_->mutex);
    return link_->server != nullptr && link_->server->Keep(number_, std::move(blocks));
  }
  int slot() const override { return slot_; }
  uint64_t number() const override { return number_; }

 private:
  const std::shared_ptr<Link> link_;
  const int slot_;
  const uint64_t number_;
};

SharedPoolServer::SharedPoolServer(const backend::KvPool& pool, const kv::KvLayout& layout,
                                   const Clock& clock, Options options)
    : pool_(pool),
      layout_(layout),
      clock_(clock),
      options_(std::move(options)),
      host_(HostToken()),
      last_lease_(RandomId64()) {
  if (options_.socket.empty()) {
    options_.socket = absl::StrCat("baton-kv-", RandomIdText(), RandomIdText());
  }
  for (int i = options_.lease_slots; i-- > 0;) free_slots_.push_back(i);
}

absl::StatusOr<std::unique_ptr<SharedPoolServer>> SharedPoolServer::Start(
    const backend::KvPool& pool, const kv::KvLayout& layout, const Clock& clock, Options options) {
  std::unique_ptr<SharedPoolServer> server(
      new SharedPoolServer(pool, layout, clock, std::move(options)));
  BATON_RETURN_IF_ERROR(server->Open());
  return server;
}

absl::Status SharedPoolServer::Open() {
  if (host_ == 0) {
    return MakeError(absl::StatusCode::kUnavailable, "SHARED_MEMORY",
                     "sharing the KV pool: /proc does not name the boot or the network namespace");
  }
  if (pool_.shared_file < 0) {
    BATON_CHECK(pool_.copier != nullptr && pool_.copier->shares()) << "a pool that is not shared";
    BATON_ASSIGN_OR_RETURN(device_pool_, pool_.copier->Export());
  }
  token_ = options_.token;
  if (token_.empty()) {
    token_.resize(kSocketTokenBytes);
    const uint64_t random[] = {RandomId64(), RandomId64()};
    static_assert(sizeof(random) == kSocketTokenBytes);
    std::memcpy(token_.data(), random, sizeof(random));
  }
  BATON_CHECK_EQ(token_.size(), kSocketTokenBytes);
  wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake_.get() < 0) return SystemError("eventfd");
  const size_t bytes = static_cast<size_t>(options_.lease_slots) * sizeof(uint64_t);
  words_file_ = FileDescriptor(memfd_create("baton-kv-leases", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (words_file_.get() < 0 || ftruncate(words_file_.get(), static_cast<off_t>(bytes)) != 0) {
    return SystemError("a memory file");
  }
  void* words = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, words_file_.get(), 0);
  if (words == MAP_FAILED) return SystemError("mapping lease words");
  words_ = words;
  if (fcntl(words_file_.get(), F_ADD_SEALS,
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    return SystemError("sealing lease words");
  }
  BATON_ASSIGN_OR_RETURN(listener_, OpenAbstractSocket(options_.socket, SocketEnd::kListen));
  {
    absl::MutexLock lock(&link_->mutex);
    link_->server = this;
  }
  thread_ = NamedThread("shared-pool", [this] { Run(); });
  return absl::OkStatus();
}

SharedPoolServer::~SharedPoolServer() {
  {
    absl::MutexLock lock(&link_->mutex);
    link_->server = nullptr;
  }
  if (thread_.joinable()) {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    Wake();
    thread_.join();
  }
  if (device_pool_) AwaitReaders();
  // The words stay as they are: what the leases cover is written no more.
  std::map<uint64_t, Lease> dropped;
  {
    absl::MutexLock lock(&mutex_);
    dropped.swap(leases_);
  }
  dropped.clear();
  if (words_ != nullptr) {
    munmap(words_, static_cast<size_t>(options_.lease_slots) * sizeof(uint64_t));
  }
}

void SharedPoolServer::AwaitReaders() {
  std::erase_if(connections_, [](const Connection& connection) { return connection.id == 0; });
  for (const Connection& connection : connections_) shutdown(connection.socket.get(), SHUT_WR);
  const absl::Duration deadline = clock_.SinceStart() + options_.grace;
  std::vector<pollfd> polled;
  while (!connections_.empty() && clock_.SinceStart() < deadline) {
    polled.clear();
    for (const Connection& connection : connections_) {
      polled.push_back({connection.socket.get(), POLLIN, 0});
    }
    const int64_t ms = absl::ToInt64Milliseconds(deadline - clock_.SinceStart()) + 1;
    const int ready = poll(polled.data(), polled.size(), static_cast<int>(ms));
    if (ready == 0 || (ready < 0 && errno != EINTR)) break;
    for (size_t i = connections_.size(); i-- > 0;) {
      if (polled[i].revents == 0) continue;
      char bytes[sizeof(uint64_t)];  // releases, which need no answer any more
      const ssize_t size = recv(polled[i].fd, bytes, sizeof(bytes), MSG_DONTWAIT);
      if (size > 0 || (size < 0 && (errno == EAGAIN || errno == EINTR))) continue;
      connections_.erase(connections_.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  if (!connections_.empty()) {
    BATON_LOG(Warning) << connections_.size()
                       << " decode workers still have the KV pool open, and it goes now: the "
                          "device's driver decides what they read";
  }
}

void SharedPoolServer::Wake() {
  const uint64_t one = 1;
  // A full counter wakes, too.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

std::shared_ptr<ReadLease> SharedPoolServer::Open(uint64_t connection, uint64_t transfer_id) {
  absl::MutexLock lock(&mutex_);
  const std::pair<uint64_t, uint64_t> key{connection, transfer_id};
  if (free_slots_.empty() || numbers_.contains(key) ||
      std::find(open_connections_.begin(), open_connections_.end(), connection) ==
          open_connections_.end()) {
    return nullptr;
  }
  if (++last_lease_ == 0) ++last_lease_;  // 0 is no lease
  const uint64_t number = last_lease_;
  Lease& lease = leases_[number];
  lease.key = key;
  lease.slot = free_slots_.back();
  free_slots_.pop_back();
  numbers_[key] = number;
  __atomic_store_n(Word(lease.slot), number, __ATOMIC_RELEASE);
  return std::make_shared<Handle>(link_, lease.slot, number);
}

int SharedPoolServer::open_leases() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(leases_.size());
}

bool SharedPoolServer::Keep(uint64_t number, std::shared_ptr<const PinnedBlocks> blocks) {
  absl::MutexLock lock(&mutex_);
  const auto it = leases_.find(number);
  if (it == leases_.end()) return false;
  // The layers of a prompt come with the same blocks again and again.
  Blocks& kept = it->second.blocks;
  if (std::find(kept.begin(), kept.end(), blocks) == kept.end()) kept.push_back(std::move(blocks));
  return true;
}

void SharedPoolServer::StreamEnded(uint64_t number) {
  {
    absl::MutexLock lock(&mutex_);
    const auto it = leases_.find(number);
    if (it == leases_.end()) return;
    it->second.ended_at = clock_.SinceStart();
  }
  Wake();
}

SharedPoolServer::Blocks SharedPoolServer::End(uint64_t number) {
  const auto it = leases_.find(number);
  if (it == leases_.end()) return {};
  // Before anything can be written to the blocks.
  __atomic_store_n(Word(it->second.slot), uint64_t{0}, __ATOMIC_SEQ_CST);
  Blocks blocks = std::move(it->second.blocks);
  free_slots_.push_back(it->second.slot);
  numbers_.erase(it->second.key);
  leases_.erase(it);
  return blocks;
}

void SharedPoolServer::EndLate() {
  std::vector<Blocks> dropped;
  absl::MutexLock lock(&mutex_);
  const absl::Duration now = clock_.SinceStart();
  std::vector<uint64_t> late;
  for (const auto& [number, lease] : leases_) {
    if (lease.ended_at && now >= *lease.ended_at + options_.grace) late.push_back(number);
  }
  for (const uint64_t number : late) dropped.push_back(End(number));
  if (!late.empty()) {
    BATON_LOG(Warning) << "a decode worker has not released " << late.size()
                       << " KV transfers through shared memory: their blocks are taken back";
  }
}

absl::Duration SharedPoolServer::UntilNextEvent() {
  const absl::Duration now = clock_.SinceStart();
  absl::Duration next = absl::InfiniteDuration();
  for (const Connection& connection : connections_) {
    if (connection.id == 0) next = std::min(next, connection.hello_deadline);
  }
  if (accept_again_at_) next = std::min(next, *accept_again_at_);
  absl::MutexLock lock(&mutex_);
  for (const auto& [number, lease] : leases_) {
    if (lease.ended_at) next = std::min(next, *lease.ended_at + options_.grace);
  }
  return std::max(absl::ZeroDuration(), next - now);
}

void SharedPoolServer::Run() {
  std::vector<pollfd> polled;
  while (true) {
    polled.clear();
    polled.push_back({wake_.get(), POLLIN, 0});
    const bool accepts =
        !accept_again_at_ && static_cast<int>(connections_.size()) < options_.max_connections;
    polled.push_back({accepts ? listener_.get() : -1, POLLIN, 0});
    for (const Connection& connection : connections_) {
      polled.push_back({connection.socket.get(), POLLIN, 0});
    }
    const absl::Duration wait = UntilNextEvent();
    // Rounded up, so that the event has come.
    const int64_t ms = std::min<int64_t>(absl::ToInt64Milliseconds(wait), 3'600'000) + 1;
    if (poll(polled.data(), polled.size(),
             wait == absl::InfiniteDuration() ? -1 : static_cast<int>(ms)) < 0 &&
        errno != EINTR) {
      BATON_LOG(Error) << SystemError("poll");
      return;
    }
    uint64_t woken;
    [[maybe_unused]] const ssize_t read_bytes = read(wake_.get(), &woken, sizeof(woken));
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) break;
    }
    const absl::Duration now = clock_.SinceStart();
    // Backwards: those that end are taken out.
    for (size_t i = connections_.size(); i-- > 0;) {
      Connection& connection = connections_[i];
      bool open = connection.id != 0 || now < connection.hello_deadline;
      if (open && (polled[i + 2].revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
        open = Read(connection);
      }
      if (open) continue;
      const uint64_t id = connection.id;
      connections_.erase(connections_.begin() + static_cast<ptrdiff_t>(i));
      Disconnect(id);
    }
    if (accept_again_at_ && now >= *accept_again_at_) accept_again_at_.reset();
    if ((polled[1].revents & POLLIN) != 0) Accept();
    EndLate();
  }
}

void SharedPoolServer::Accept() {
  FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.get() < 0) {
    // Without files to be had, the connection waits and poll() would return at once.
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      BATON_LOG(Warning) << SystemError("accepting a decode worker");
      accept_again_at_ = clock_.SinceStart() + kAcceptAgain;
    }
    return;
  }
  // Getting the token may need no credential on loopback. The pool has the prompts of all tenants,
  // so other users of the machine must not read it.
  if (!IsOfThisUser(socket.get())) {
    // Strangers must not fill the log. A decode worker logs its own failure.
    BATON_LOG(Debug) << "another user may not read the KV pool";
    return;
  }
  Connection connection;
  connection.socket = std::move(socket);
  connection.hello_deadline = clock_.SinceStart() + kHelloTimeout;
  connections_.push_back(std::move(connection));
}

bool SharedPoolServer::Read(Connection& connection) {
  char bytes[sizeof(SocketHello) + 1];  // a longer message is seen to be
  const ssize_t size = recv(connection.socket.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
  if (size < 0) return errno == EAGAIN || errno == EINTR;
  if (connection.id == 0) {
    SocketHello hello;
    if (size != sizeof(hello)) return false;
    std::memcpy(&hello, bytes, sizeof(hello));
    return hello.magic == SocketHello::kMagic && SameToken(hello.token, token_.data()) &&
           Welcome(connection);
  }
  uint64_t transfer_id;
  if (size != sizeof(transfer_id)) return false;
  std::memcpy(&transfer_id, bytes, sizeof(transfer_id));
  Blocks dropped;
  absl::MutexLock lock(&mutex_);
  const auto it = numbers_.find({connection.id, transfer_id});
  if (it != numbers_.end()) dropped = End(it->second);
  return true;
}

bool SharedPoolServer::Welcome(Connection& connection) {
  SocketWelcome welcome;
  welcome.connection = RandomId64();
  welcome.kv_layout_fingerprint = layout_.Fingerprint();
  welcome.pool_bytes = static_cast<uint64_t>(pool_.block_count * layout_.PageBytes());
  welcome.lease_slots = static_cast<uint64_t>(options_.lease_slots);
  DeviceWelcome device_welcome;
  iovec data{&welcome, sizeof(welcome)};
  int files[] = {words_file_.get(), -1};
  size_t file_bytes = sizeof(int);
  if (device_pool_) {
    device_welcome.welcome = welcome;
    device_welcome.pool = *device_pool_;
    device_welcome.checksum = device_welcome.Checksum();
    data = {&device_welcome, sizeof(device_welcome)};
  } else {
    files[0] = pool_.shared_file;
    files[1] = words_file_.get();
    file_bytes = sizeof(files);
  }
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(files))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(file_bytes);
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(file_bytes);
  std::memcpy(CMSG_DATA(part), files, file_bytes);
  {
    // First: the decode worker names the connection as soon as it has the message.
    absl::MutexLock lock(&mutex_);
    open_connections_.push_back(welcome.connection);
  }
  connection.id = welcome.connection;
  return sendmsg(connection.socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(data.iov_len);
}

void SharedPoolServer::Disconnect(uint64_t connection) {
  if (connection == 0) return;
  std::vector<Blocks> dropped;
  absl::MutexLock lock(&mutex_);
  std::erase(open_connections_, connection);
  std::vector<uint64_t> ended;
  for (auto it = numbers_.lower_bound({connection, 0});
       it != numbers_.end() && it->first.first == connection; ++it) {
    ended.push_back(it->second);
  }
  for (const uint64_t number : ended) dropped.push_back(End(number));
}

}  // namespace baton::transfer
