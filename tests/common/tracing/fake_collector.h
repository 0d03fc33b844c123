// A collector in memory: the test says what it answers, and reads what it got.
#ifndef BATON_TESTS_COMMON_TRACING_FAKE_COLLECTOR_H_
#define BATON_TESTS_COMMON_TRACING_FAKE_COLLECTOR_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/tracing/span_exporter.h"

namespace baton::testing {

// For one thread: of an exporter without its own.
class FakeCollector {
 public:
  // What the next posts get; after the last, 200.
  std::deque<absl::StatusOr<tracing::SpanTransport::Reply>> replies;
  std::vector<nlohmann::json> bodies;  // of all posts, refused ones included
  std::vector<absl::Duration> timeouts;
  bool cancelled = false;
  int exported = 0;
  std::map<std::string, int> dropped;
  std::function<void()> on_post = [] {};

  std::unique_ptr<tracing::SpanTransport> Transport() { return std::make_unique<Wire>(*this); }
  tracing::ExportEvents Events() {
    return {[this](int spans) { exported += spans; },
            [this](int spans, const char* reason) { dropped[reason] += spans; }};
  }
  static nlohmann::json Spans(const nlohmann::json& body) {
    return body["resourceSpans"][0]["scopeSpans"][0]["spans"];
  }
  // Of all posts, by name; the last of each name.
  std::map<std::string, nlohmann::json> ByName() const {
    std::map<std::string, nlohmann::json> spans;
    for (const nlohmann::json& body : bodies) {
      for (const nlohmann::json& span : Spans(body)) spans[span["name"]] = span;
    }
    return spans;
  }
  // The value of an attribute, whatever its type; null if it is absent.
  static nlohmann::json Attribute(const nlohmann::json& of, const std::string& key) {
    if (!of.contains("attributes")) return nullptr;
    for (const nlohmann::json& one : of["attributes"]) {
      if (one["key"] == key) return one["value"].front();
    }
    return nullptr;
  }

 private:
  class Wire final : public tracing::SpanTransport {
   public:
    explicit Wire(FakeCollector& collector) : collector_(collector) {}
    absl::StatusOr<Reply> Post(const std::string& body, absl::Duration timeout) override {
      collector_.bodies.push_back(nlohmann::json::parse(body));
      collector_.timeouts.push_back(timeout);
      collector_.on_post();
      if (collector_.replies.empty()) return Reply{200, absl::ZeroDuration()};
      auto reply = std::move(collector_.replies.front());
      collector_.replies.pop_front();
      return reply;
    }
    void Cancel() override { collector_.cancelled = true; }

   private:
    FakeCollector& collector_;
  };
};

}  // namespace baton::testing

#endif  // BATON_TESTS_COMMON_TRACING_FAKE_COLLECTOR_H_
