#include "tests/cluster/faults/load.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/error.h"
#include "common/base/random_id.h"

namespace baton::testing {
namespace {

constexpr int kPrefixes = 8;
constexpr int kMaxExamples = 5;
constexpr int kSpecialTokens = 4;  // at the end of the vocabulary

cli::LoadRequest ToLoad(const Case& c, const ClientCall::Options& options,
                        std::shared_ptr<grpc::ClientContext> context) {
  cli::LoadRequest load;
  load.request = ToRequest(c);
  load.request.set_cache_salt(options.cache_salt);
  load.timeout = options.timeout;
  if (options.on_tokens) {
    load.on_tokens = [&options](int tokens) {
      options.on_tokens(tokens);
      return true;
    };
  }
  load.context = std::move(context);
  return load;
}

// Of a request that was sent at `begin`.
Answer ToAnswer(absl::Time begin, cli::Outcome outcome) {
  const auto time_of = [&](double at_s) { return begin + absl::Seconds(at_s - outcome.sent_s); };
  Answer answer;
  answer.begin = begin;
  answer.end = time_of(outcome.ended_s);
  for (size_t i = 0; i < outcome.token_s.size(); ++i) {
    const bool same_message = i > 0 && outcome.token_s[i] == outcome.token_s[i - 1];
    if (!same_message) answer.token_times.push_back(time_of(outcome.token_s[i]));
  }
  if (outcome.has_first()) answer.first_token = answer.token_times.front();
  answer.tokens = std::move(outcome.tokens);
  answer.usage = outcome.usage;
  answer.finish = outcome.finish;
  answer.status = std::move(outcome.status);
  return answer;
}

}  // namespace

std::vector<Case> MakeCases(Oracle& oracle, int count, const CaseShape& shape, uint64_t seed) {
  std::mt19937_64 random(seed);
  const int vocabulary = oracle.engine().config().vocab_size - kSpecialTokens;
  const auto between = [&](int low, int high) {
    return low + static_cast<int>(random() % (high - low + 1));
  };
  const auto tokens = [&](int n) {
    std::vector<int32_t> ids(n);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % vocabulary);
    return ids;
  };
  std::vector<std::vector<int32_t>> prefixes;
  for (int i = 0; i < kPrefixes; ++i) prefixes.push_back(tokens(between(1, shape.max_prompt)));
  std::vector<Case> cases;
  for (int i = 0; i < count; ++i) {
    Case c;
    const int length = between(shape.min_prompt, shape.max_prompt);
    if (i % 2 == 0) c.prompt = prefixes[random() % kPrefixes];
    c.prompt.resize(std::min<size_t>(c.prompt.size(), length * 3 / 4));
    const std::vector<int32_t> tail = tokens(length - static_cast<int>(c.prompt.size()));
    c.prompt.insert(c.prompt.end(), tail.begin(), tail.end());
    c.sampling.temperature = i % 3 == 0 ? 0.0f : 0.5f + static_cast<float>(random() % 10) / 10;
    c.sampling.top_p = i % 4 == 0 ? 0.9f : 1.0f;
    c.sampling.top_k = i % 5 == 0 ? 20 : 0;
    c.sampling.min_p = i % 7 == 0 ? 0.05f : 0.0f;
    c.sampling.seed = random();
    c.expected = oracle.Generate(c.prompt, c.sampling, between(shape.min_answer, shape.max_answer));
    cases.push_back(std::move(c));
  }
  return cases;
}

baton::v1::GenerateRequest ToRequest(const Case& c) {
  baton::v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(c.prompt.begin(), c.prompt.end());
  request.mutable_sampling()->set_temperature(c.sampling.temperature);
  request.mutable_sampling()->set_top_p(c.sampling.top_p);
  request.mutable_sampling()->set_top_k(c.sampling.top_k);
  request.mutable_sampling()->set_min_p(c.sampling.min_p);
  request.mutable_sampling()->set_seed(c.sampling.seed);
  request.mutable_stop()->set_max_tokens(static_cast<int>(c.expected.size()));
  request.mutable_stop()->set_ignore_eos(true);
  request.set_return_token_ids(true);
  return request;
}

Answer ClientCall::Run(const std::shared_ptr<grpc::Channel>& router, const Case& c,
                       const Options& options) {
  const absl::Time begin = absl::Now();
  return ToAnswer(begin, cli::LoadGenerator(router).SendAndWait(ToLoad(c, options, context_)));
}

Tally::Verdict Tally::Count(const Case& c, const Answer& answer, bool expect_cancel) {
  const bool finished = answer.finish != baton::v1::FINISH_REASON_UNSPECIFIED;
  const bool beginning = answer.tokens.size() <= c.expected.size() &&
                         std::equal(answer.tokens.begin(), answer.tokens.end(), c.expected.begin());
  const std::string reason = ErrorReason(answer.status);
  std::string wrong;
  if (!beginning) {
    wrong = "tokens differ from the oracle's";
  } else if (answer.status.ok() && answer.finish != baton::v1::FINISH_REASON_LENGTH) {
    wrong = "ended well without the finish expected";
  } else if (answer.status.ok() && answer.tokens.size() != c.expected.size()) {
    wrong = "called finished, but tokens are missing";
  } else if (!answer.status.ok() && finished && !expect_cancel) {
    wrong = "failed after a finish";
  } else if (!answer.status.ok() && reason.empty() && !router_may_die_ &&
             !(expect_cancel && absl::IsCancelled(answer.status)) &&
             !absl::IsDeadlineExceeded(answer.status)) {
    wrong = "an error without a reason";  // a deadline may be the client's own gRPC's
  }
  absl::MutexLock lock(&mutex_);
  if (!wrong.empty()) {
    ++wrong_;
    if (examples_.size() < kMaxExamples) {
      examples_.push_back(absl::StrCat(wrong, ": ", answer.tokens.size(), " of ", c.expected.size(),
                                       " tokens, prompt of ", c.prompt.size(), ", ",
                                       answer.status.ToString()));
    }
    return Verdict::kWrong;
  }
  if (answer.status.ok()) {
    ++right_;
    return Verdict::kRight;
  }
  if (expect_cancel && absl::IsCancelled(answer.status)) {
    ++cancelled_;
    return Verdict::kCancelled;
  }
  ++errors_;
  ++reasons_[cli::ReasonOf(answer.status)];
  return Verdict::kError;
}

int64_t Tally::requests() const {
  absl::MutexLock lock(&mutex_);
  return right_ + cancelled_ + wrong_ + errors_;
}

int64_t Tally::right() const {
  absl::MutexLock lock(&mutex_);
  return right_;
}

int64_t Tally::errors() const {
  absl::MutexLock lock(&mutex_);
  return errors_;
}

int64_t Tally::wrong() const {
  absl::MutexLock lock(&mutex_);
  return wrong_;
}

std::string Tally::ErrorsByReason() const {
  absl::MutexLock lock(&mutex_);
  std::string text;
  for (const auto& [reason, count] : reasons_) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", reason, " ", count);
  }
  return text;
}

std::map<std::string, int64_t> Tally::reasons() const {
  absl::MutexLock lock(&mutex_);
  return reasons_;
}

std::vector<std::string> Tally::examples() const {
  absl::MutexLock lock(&mutex_);
  return examples_;
}

BackgroundLoad::BackgroundLoad(const std::shared_ptr<grpc::Channel>& router,
                               const std::vector<Case>& cases, const Options& options, Tally& tally)
    : generator_(router), cases_(cases), options_(options), tally_(tally) {
  for (int i = 0; i < options_.clients; ++i) {
    clients_.emplace_back().random.seed(options_.seed * 1000 + i);
  }
  thread_ = std::thread([this] {
    generator_.RunClosedLoop(
        options_.clients, [this](int client) { return Next(clients_[client]); },
        [this](int client, cli::Outcome outcome) { Take(clients_[client], std::move(outcome)); });
  });
}

void BackgroundLoad::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

bool BackgroundLoad::AwaitRight(int64_t count) {
  const auto decided = [&] {
    mutex_.AssertReaderHeld();
    return right_ >= count || not_right_ > 0;
  };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&decided));
  return right_ >= count;
}

bool BackgroundLoad::Pause(absl::Duration pause) {
  absl::MutexLock lock(&mutex_);
  return !mutex_.AwaitWithTimeout(absl::Condition(&stopping_), pause);
}

std::optional<cli::LoadRequest> BackgroundLoad::Next(Client& client) {
  if (!Pause(client.pause)) return std::nullopt;
  std::mt19937_64& random = client.random;
  client.sent = &cases_[random() % cases_.size()];
  client.aborts = static_cast<double>(random() % 1'000'000) < options_.abort_share * 1e6;
  const int abort_at = static_cast<int>(random() % (client.sent->expected.size() + 1));
  client.context = std::make_shared<grpc::ClientContext>();
  ClientCall::Options call;
  call.timeout = options_.timeout;
  if (options_.cold) call.cache_salt = NewSalt();
  cli::LoadRequest load = ToLoad(*client.sent, call, client.context);
  if (client.aborts) {
    // At 0 tokens: at once, while the request may be anywhere on its way.
    if (abort_at == 0) client.context->TryCancel();
    load.on_tokens = [abort_at](int tokens) { return tokens < abort_at; };
  }
  client.begin = absl::Now();
  return load;
}

void BackgroundLoad::Take(Client& client, cli::Outcome outcome) {
  const Answer answer = ToAnswer(client.begin, std::move(outcome));
  const bool right = tally_.Count(*client.sent, answer, client.aborts) == Tally::Verdict::kRight;
  {
    absl::MutexLock lock(&mutex_);
    ++(right ? right_ : not_right_);
  }
  client.pause = options_.pause;
  if (right) {
    tokens_ += static_cast<int64_t>(answer.tokens.size());
  } else if (!answer.status.ok() && !client.aborts) {
    // A refused client that comes back at once would be a storm of its own.
    client.pause = std::max(client.pause, absl::Milliseconds(50));
  }
  if (options_.on_answer) options_.on_answer(answer);
}

std::string NewSalt() { return RandomIdText(); }

absl::Duration GapQuantile(const std::vector<Answer>& answers, double q) {
  std::vector<absl::Duration> gaps;
  for (const Answer& answer : answers) {
    for (size_t i = 1; i < answer.token_times.size(); ++i) {
      gaps.push_back(answer.token_times[i] - answer.token_times[i - 1]);
    }
  }
  if (gaps.empty()) return absl::ZeroDuration();
  std::sort(gaps.begin(), gaps.end());
  return gaps[std::min(gaps.size() - 1, static_cast<size_t>(q * static_cast<double>(gaps.size())))];
}

}  // namespace baton::testing
