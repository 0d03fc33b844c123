// The clients of a simulated cluster: each asks a router, asks again as docs/errors.md says that it
// may, and has every answer judged.
#ifndef BATON_TESTS_SIMULATION_CLIENTS_H_
#define BATON_TESTS_SIMULATION_CLIENTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/judge.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/router.h"
#include "tests/simulation/world.h"

namespace baton::simulation {

class Clients {
 public:
  struct Counts {
    int finished = 0;
    int failed = 0;  // with an error, as it should be
    int cancelled = 0;
    int late = 0;          // of failed: the deadline passed
    int never_fit = 0;     // of failed
    int lost_routers = 0;  // a router died on a request, which another one was asked
    int calls = 0;         // to routers
    int cut = 0;           // of calls: failed after their first delta, not by their deadline
    int64_t heartbeats = 0;
    int64_t tokens = 0;
  };
  // All must outlive it.
  Clients(World& world, const std::vector<std::unique_ptr<Router>>& routers,
          const MayFail& may_fail)
      : world_(world), routers_(routers), may_fail_(may_fail) {}

  void Submit(RequestSpec spec);
  bool AllEnded() const { return open_requests_ == 0; }
  const Counts& counts() const { return counts_; }
  // Calls, not requests, that failed: by reason, or else code.
  const std::map<std::string, int>& failed_by_reason() const { return failed_by_reason_; }

 private:
  struct Request {
    RequestSpec spec;
    std::string id;
    std::shared_ptr<const Expected> expected;
    size_t next_router = 0;
    Router* router = nullptr;  // that has its call; null: none has
    std::weak_ptr<Router::Call> call;
    std::shared_ptr<Judge> judge;  // of the call
    bool given_up = false;         // by the client
    bool ended = false;
  };

  void Ask(const std::shared_ptr<Request>& request);
  void AskAgain(const std::shared_ptr<Request>& request, Micros after);
  void GiveUp(const std::shared_ptr<Request>& request);
  void OnEnd(const std::shared_ptr<Request>& request, const absl::Status& status);
  void End(Request& request, const absl::Status& status);

  World& world_;
  const std::vector<std::unique_ptr<Router>>& routers_;
  const MayFail& may_fail_;
  // All of them, until the end: a judge refers to its request weakly.
  std::vector<std::shared_ptr<Request>> requests_;
  int open_requests_ = 0;
  uint64_t request_count_ = 0;
  Counts counts_;
  std::map<std::string, int> failed_by_reason_;
};

}  // namespace baton::simulation

#endif  // BATON_TESTS_SIMULATION_CLIENTS_H_
