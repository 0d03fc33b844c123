// What all requests of a router share.
#ifndef BATON_ROUTER_REQUEST_ROUTER_PARTS_H_
#define BATON_ROUTER_REQUEST_ROUTER_PARTS_H_

namespace baton {
class Clock;
namespace chat {
class ModelChat;
}
namespace tokenizer {
class Tokenizer;
}
namespace tracing {
class Tracer;
}
}  // namespace baton

namespace baton::router {

class Access;
class Admission;
class CallRegistry;
class CallWatch;
class ContinuationLine;
class DecisionLog;
class DecodeNetwork;
class ItemShares;
class PromptHistory;
class RequestBytes;
class RequestClasses;
class RerankPrompt;
class RetryBudget;
class Roster;
class RoutePlanner;
class RouterMetrics;
class ScoreNetwork;
class TenantLimits;
class TokenizedTexts;
class UnreadAnswers;
class WorkPool;
struct Options;

// Everything here outlives every request.
struct RouterParts {
  const Options& options;
  const tokenizer::Tokenizer& tokenizer;
  const Clock& clock;  // measures
  const Clock& awake;  // judges how long others are silent, and how long to wait: an AwakeClock
  Roster& roster;
  RoutePlanner& planner;
  RouterMetrics& metrics;
  Admission& admission;
  RetryBudget& retry_budget;
  ContinuationLine& continuations;  // streams that wait for room on another decode worker
  WorkPool& pool;                   // threads that tokenize and choose workers
  CallWatch& watch;                 // ends calls whose deadline or stall limit has passed
  UnreadAnswers& unread;            // bounds what waits for clients to read
  DecodeNetwork& network;           // opens streams to decode workers; simulated in tests
  DecisionLog& decisions;
  const Access& access;   // who makes a call
  TenantLimits& tenants;  // limits of API keys
  const chat::ModelChat& chat;
  CallRegistry& calls;                    // by tenant and request id
  PromptHistory& prompts;                 // recent ones, by which cache misses are explained
  tracing::Tracer* tracer = nullptr;      // null: nothing is traced
  RequestClasses* classes = nullptr;      // null: all tenants have that of the flags
  ScoreNetwork* score_network = nullptr;  // opens streams to prefill workers; null in tests without
  ItemShares* item_shares = nullptr;      // of scoring calls; null where score_network is
  TokenizedTexts* tokenized = nullptr;    // null: every chat is tokenized whole
  RequestBytes* request_bytes = nullptr;  // null: requests of any size are taken in
  const RerankPrompt* rerank = nullptr;   // null: documents are not ranked
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_ROUTER_PARTS_H_
