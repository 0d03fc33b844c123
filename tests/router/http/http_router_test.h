// A router that serves HTTP, over one scripted worker of each role.
#ifndef BATON_TESTS_ROUTER_HTTP_HTTP_ROUTER_TEST_H_
#define BATON_TESTS_ROUTER_HTTP_HTTP_ROUTER_TEST_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "tests/testing/fake_cluster.h"

namespace baton::router {

class HttpRouterTest : public ::testing::Test {
 protected:
  void Start(const std::function<void(Options*)>& adjust = nullptr) {
    cluster_ = std::make_unique<testing::FakeCluster>(1, 1, [&](Options* options) {
      options->http_listen = "127.0.0.1:0";
      if (adjust != nullptr) adjust(options);
    });
  }
  std::string address() const { return cluster_->server().http_address(); }
  std::unique_ptr<testing::FakeCluster> cluster_;
};

}  // namespace baton::router

#endif  // BATON_TESTS_ROUTER_HTTP_HTTP_ROUTER_TEST_H_
