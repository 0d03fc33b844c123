#include "tests/simulation/world.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/splitmix64.h"

namespace baton::simulation {
namespace {

// When the transport gives up a connection over which nothing gets.
constexpr Micros kKeepalive = 15 * kSecond;

}  // namespace

uint64_t Random::Next() { return NextSplitMix64(&state_); }

void World::At(Micros when, std::function<void()> event) {
  events_.push(Event{std::max(when, now()), ++order_,
                     std::make_shared<std::function<void()>>(std::move(event))});
}

void World::AtNode(int node, Micros when, std::function<void()> event) {
  At(when, [this, node, event = std::move(event)]() mutable {
    if (frozen_until(node) <= now()) return event();
    AtNode(node, frozen_until(node), std::move(event));
  });
}

bool World::RunNext() {
  if (events_.empty()) return false;
  const Event event = events_.top();
  events_.pop();
  BATON_CHECK_GE(event.when, now_);
  now_ = event.when;
  spent_ = 0;  // a worker that was killed computed its last step outside of a turn
  ++event_count_;
  (*event.run)();
  return true;
}

Micros World::EndWork() {
  const Micros end = now();
  spent_ = 0;
  return end;
}

void World::Fail(const std::string& what) {
  if (failure_.empty()) failure_ = what;
}

int World::AddNode() {
  nodes_.emplace_back();
  return static_cast<int>(nodes_.size()) - 1;
}

template <class Visit>
void World::ForStreams(const Visit& visit) {
  std::vector<std::shared_ptr<Stream>> streams;
  for (auto it = streams_.begin(); it != streams_.end();) {
    if (std::shared_ptr<Stream> stream = it->lock()) {
      streams.push_back(std::move(stream));
      ++it;
    } else {
      it = streams_.erase(it);
    }
  }
  for (const std::shared_ptr<Stream>& stream : streams) visit(*stream);
}

void World::EndStreams() {
  ForStreams([](Stream& stream) {
    stream.Close(0);
    stream.Close(1);
  });
}

size_t World::open_stream_count() {
  size_t count = 0;
  ForStreams([&count](Stream& stream) { count += stream.open(0); });
  return count;
}

void World::Kill(int node, bool machine_gone) {
  nodes_[node].alive = false;
  nodes_[node].frozen_until = 0;
  ForStreams([&](Stream& stream) {
    for (const int end : {0, 1}) {
      if (stream.node(end) != node) continue;
      stream.Close(end);
      const Micros delay = machine_gone ? kKeepalive : random.Time(100, 30 * kMillisecond);
      stream.Break(delay, delay);
    }
  });
}

void World::Freeze(int node, Micros until) {
  nodes_[node].frozen_until = std::max(nodes_[node].frozen_until, until);
  if (until - now() < kKeepalive) return;
  // Its peers give up; it hears of that when it wakes.
  At(now() + kKeepalive, [this, node] {
    if (nodes_[node].frozen_until <= now()) return;
    ForStreams([&](Stream& stream) {
      if (stream.node(0) == node || stream.node(1) == node) stream.Break(0, 0);
    });
  });
}

void World::Block(int from, int to, Micros until) {
  Micros& blocked = blocked_until_[{from, to}];
  blocked = std::max(blocked, until);
  if (until - now() < kKeepalive) return;
  At(now() + kKeepalive, [this, from, to] {
    if (blocked_until_[{from, to}] > now()) DropStreams(from, to);
  });
}

void World::DropStreams(int a, int b) {
  ForStreams([&](Stream& stream) {
    const std::pair ends(stream.node(0), stream.node(1));
    if (ends != std::pair(a, b) && ends != std::pair(b, a)) return;
    stream.Break(random.Time(0, 20 * kMillisecond), random.Time(0, 2 * kSecond));
  });
}

Micros World::Passable(int from, int to) const {
  const auto it = blocked_until_.find({from, to});
  return std::max(it == blocked_until_.end() ? 0 : it->second, nodes_[to].frozen_until);
}

std::shared_ptr<Stream> World::Open(int from, int to) {
  auto stream = std::make_shared<Stream>(*this, from, to);
  streams_.push_back(stream);
  if (!nodes_[to].alive) {
    stream->Close(1);
    stream->Break(random.Time(100, 5 * kMillisecond), 0);
  }
  return stream;
}

void Stream::Send(int from, std::function<void()> deliver) {
  if (broken_) return;
  const Micros ready = world_.now() + world_.Latency();
  queues_[from].push_back({ready, std::move(deliver)});
  if (!pumping_[from]) SchedulePump(from, ready);
}

void Stream::SchedulePump(int from, Micros when) {
  pumping_[from] = true;
  world_.At(when, [self = shared_from_this(), from] { self->Pump(from); });
}

void Stream::Pump(int from) {
  pumping_[from] = false;
  if (queues_[from].empty()) return;
  const Micros passable = world_.Passable(ends_[from].node, ends_[1 - from].node);
  const Micros when = std::max(queues_[from].front().ready, passable);
  if (when > world_.now()) {
    SchedulePump(from, when);
    return;
  }
  Message message = std::move(queues_[from].front());
  queues_[from].pop_front();
  if (ends_[1 - from].open) message.deliver();
  if (!queues_[from].empty() && !pumping_[from]) {
    SchedulePump(from, std::max(queues_[from].front().ready, world_.now()));
  }
}

void Stream::Close(int end) {
  ends_[end].open = false;
  ends_[end].lost = nullptr;
  queues_[1 - end].clear();
}

void Stream::Break(Micros opener_delay, Micros acceptor_delay) {
  if (broken_) return;
  broken_ = true;
  for (std::deque<Message>& queue : queues_) queue.clear();
  const std::array<Micros, 2> delays = {opener_delay, acceptor_delay};
  for (const int end : {0, 1}) {
    if (!ends_[end].open) continue;
    world_.At(world_.now() + delays[end],
              [self = shared_from_this(), end] { self->TellLost(end); });
  }
}

void Stream::TellLost(int end) {
  if (!ends_[end].open) return;
  const Micros frozen = world_.frozen_until(ends_[end].node);
  if (frozen > world_.now()) {
    world_.At(frozen, [self = shared_from_this(), end] { self->TellLost(end); });
    return;
  }
  const std::function<void()> lost = std::move(ends_[end].lost);
  Close(end);
  if (lost) lost();
}

}  // namespace baton::simulation
