// BATON_CHECK: a broken invariant aborts the process and prints file, line, condition and message.
// Errors that a peer, a file or a request can cause are absl::Status instead.
#ifndef BATON_COMMON_BASE_CHECK_H_
#define BATON_COMMON_BASE_CHECK_H_

#include <sstream>

namespace baton {

class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

}  // namespace baton

#define BATON_CHECK(condition)              \
  while (__builtin_expect(!(condition), 0)) \
  ::baton::CheckFailure(__FILE__, __LINE__, #condition).stream()

#define BATON_CHECK_OP_(a, op, b) BATON_CHECK((a)op(b)) << (a) << " against " << (b) << ". "
#define BATON_CHECK_EQ(a, b) BATON_CHECK_OP_(a, ==, b)
#define BATON_CHECK_NE(a, b) BATON_CHECK_OP_(a, !=, b)
#define BATON_CHECK_LT(a, b) BATON_CHECK_OP_(a, <, b)
#define BATON_CHECK_LE(a, b) BATON_CHECK_OP_(a, <=, b)
#define BATON_CHECK_GT(a, b) BATON_CHECK_OP_(a, >, b)
#define BATON_CHECK_GE(a, b) BATON_CHECK_OP_(a, >=, b)

#endif  // BATON_COMMON_BASE_CHECK_H_
