// What happens next in a simulation, in order of time; what happens at one time, in the order in
// which it was noted.
#ifndef BATON_SIMULATOR_EVENT_QUEUE_H_
#define BATON_SIMULATOR_EVENT_QUEUE_H_

#include <cstdint>
#include <queue>

namespace baton::simulator {

template <class Kind>
class EventQueue {
 public:
  struct Event {
    int64_t at_us;
    int64_t order;  // of those at one time
    Kind kind;
    int subject;  // a worker, or a request
    uint64_t epoch = 0;
    int message = -1;
    bool operator<(const Event& other) const {  // for a queue whose top is the largest
      return at_us != other.at_us ? at_us > other.at_us : order > other.order;
    }
  };

  void At(int64_t at_us, Kind kind, int subject, uint64_t epoch = 0, int message = -1) {
    events_.push({at_us, ++order_, kind, subject, epoch, message});
  }
  // REQUIRES: an event was noted.
  Event Next() {
    const Event event = events_.top();
    events_.pop();
    now_us_ = event.at_us;
    return event;
  }
  int64_t now_us() const { return now_us_; }  // of the last one

 private:
  std::priority_queue<Event> events_;
  int64_t now_us_ = 0, order_ = 0;
};

}  // namespace baton::simulator

#endif  // BATON_SIMULATOR_EVENT_QUEUE_H_
