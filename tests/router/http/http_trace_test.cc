#include "router/http/http_trace.h"

#include <gtest/gtest.h>

namespace baton::router {
namespace {

constexpr char kParent[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TraceContext TraceFrom(HttpHeaders headers) {
  HttpRequest request;
  request.headers = std::move(headers);
  return TraceOf(request);
}

TEST(HttpTrace, NamesAreReadInAnyCaseAndTracestatesAreJoined) {
  const TraceContext trace = TraceFrom(
      {{"TraceParent", kParent}, {"tracestate", "a=1"}, {"X", "y"}, {"Tracestate", "b=2"}});
  EXPECT_EQ(Traceparent(trace), kParent);
  EXPECT_EQ(trace.state, "a=1,b=2");
}

TEST(HttpTrace, NoneOrSeveralParentsAreNoTrace) {
  EXPECT_FALSE(TraceFrom({}).valid());
  EXPECT_FALSE(TraceFrom({{"tracestate", "a=1"}}).valid());
  EXPECT_FALSE(TraceFrom({{"traceparent", kParent}, {"traceparent", kParent}}).valid());
  EXPECT_FALSE(TraceFrom({{"traceparent", "00-"}}).valid());
}

}  // namespace
}  // namespace baton::router
