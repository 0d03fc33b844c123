// The least HTTP client: one GET on one connection.
#ifndef BATON_TESTS_TESTING_HTTP_GET_H_
#define BATON_TESTS_TESTING_HTTP_GET_H_

#include <string>

namespace baton::testing {

// The whole answer, headers included; empty if `address` (host:port) does not answer.
std::string HttpGet(const std::string& address, const std::string& path);

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_HTTP_GET_H_
