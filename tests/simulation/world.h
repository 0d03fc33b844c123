// Time, chance and the network of a simulation: one thread, an event queue, and nothing of the
// machine it runs on. Equal seeds give equal histories.
#ifndef BATON_TESTS_SIMULATION_WORLD_H_
#define BATON_TESTS_SIMULATION_WORLD_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"

namespace baton::simulation {

using Micros = int64_t;
constexpr Micros kMillisecond = 1'000;
constexpr Micros kSecond = 1'000'000;

// SplitMix64: the same numbers everywhere, unlike the standard library's distributions.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  int Below(int bound) { return static_cast<int>(Next() % static_cast<uint64_t>(bound)); }
  int Between(int least, int most) { return least + Below(most - least + 1); }
  Micros Time(Micros least, Micros most) {
    return least + static_cast<Micros>(Next() % static_cast<uint64_t>(most - least + 1));
  }
  bool Chance(double probability) {
    return static_cast<double>(Next() >> 11) < probability * 9007199254740992.0;
  }

 private:
  uint64_t state_;
};

class Stream;

class World final : public Clock {
 public:
  explicit World(uint64_t seed) : random(seed) {}

  // --- Time.
  Micros now() const { return now_ + spent_; }
  absl::Duration SinceStart() const override { return absl::Microseconds(now()); }
  absl::Time Now() const override { return absl::UnixEpoch() + SinceStart(); }
  void At(Micros when, std::function<void()> event);
  // As At, but not before the node is awake.
  void AtNode(int node, Micros when, std::function<void()> event);
  // Runs the next event; false if there is none.
  bool RunNext();
  int64_t event_count() const { return event_count_; }
  // Between the two, Spend() lets time pass for whoever runs now; the world stands still.
  void BeginWork() { spent_ = 0; }
  Micros EndWork();  // when the work was done
  void Spend(Micros time) { spent_ += time; }

  // --- What went wrong, first of all.
  void Fail(const std::string& what);
  bool failed() const { return !failure_.empty(); }
  const std::string& failure() const { return failure_; }

  // --- The network.
  int AddNode();
  bool alive(int node) const { return nodes_[node].alive; }
  void SetAlive(int node) { nodes_[node].alive = true; }
  // All its streams end; the peers hear of it soon, or, if the machine is gone, when keepalive
  // tells.
  void Kill(int node, bool machine_gone);
  // It neither works nor receives until then.
  void Freeze(int node, Micros until);
  Micros frozen_until(int node) const { return nodes_[node].frozen_until; }
  // Nothing gets from one to the other until then; streams stall, and break if it takes too long.
  void Block(int from, int to, Micros until);
  void DropStreams(int a, int b);
  // Both ends must set their callbacks before anything is delivered. To a dead node: lost soon.
  std::shared_ptr<Stream> Open(int from, int to);
  Micros Latency() { return random.Chance(0.02) ? random.Time(200, 50'000) : random.Time(50, 500); }
  // Closes all streams at both ends. What their callbacks refer to may hold the streams in turn.
  void EndStreams();
  // Whose opener has not closed them.
  size_t open_stream_count();

  Random random;

 private:
  friend class Stream;
  struct Event {
    Micros when;
    uint64_t order;
    std::shared_ptr<std::function<void()>> run;
    bool operator<(const Event& other) const {
      return std::pair(when, order) > std::pair(other.when, other.order);
    }
  };
  struct Node {
    bool alive = true;
    Micros frozen_until = 0;
  };
  // When something that travels now can be taken in.
  Micros Passable(int from, int to) const;
  template <class Visit>
  void ForStreams(const Visit& visit);

  Micros now_ = 0;
  Micros spent_ = 0;
  uint64_t order_ = 0;
  int64_t event_count_ = 0;
  std::priority_queue<Event> events_;
  std::string failure_;
  std::vector<Node> nodes_;
  std::map<std::pair<int, int>, Micros> blocked_until_;
  std::list<std::weak_ptr<Stream>> streams_;
};

// A connection for one call. Each direction keeps its order; streams know nothing of each other's.
class Stream final : public std::enable_shared_from_this<Stream> {
 public:
  Stream(World& world, int opener, int acceptor)
      : world_(world), ends_{End{opener, true, nullptr}, End{acceptor, true, nullptr}} {}

  // From the other end, or the transport: nothing more will come. Not called after Close.
  void OnLost(int end, std::function<void()> lost) { ends_[end].lost = std::move(lost); }
  // Runs `deliver` at the other end in due time, unless that has closed or the stream broke.
  void Send(int from, std::function<void()> deliver);
  // Drops what has not been delivered yet.
  void Discard(int from) { queues_[from].clear(); }
  void Close(int end);
  // Nothing gets through any more. Each end hears of it after its delay.
  void Break(Micros opener_delay, Micros acceptor_delay);

  int node(int end) const { return ends_[end].node; }
  bool open(int end) const { return ends_[end].open; }

 private:
  struct End {
    int node;
    bool open = true;
    std::function<void()> lost;
  };
  struct Message {
    Micros ready;
    std::function<void()> deliver;
  };
  void Pump(int from);
  void SchedulePump(int from, Micros when);
  void TellLost(int end);

  World& world_;
  std::array<End, 2> ends_;
  std::array<std::deque<Message>, 2> queues_;
  std::array<bool, 2> pumping_ = {false, false};
  bool broken_ = false;
};

}  // namespace baton::simulation

#endif  // BATON_TESTS_SIMULATION_WORLD_H_
