// Return early on errors. (Debian 12 has an Abseil without such macros.)
#ifndef BATON_COMMON_BASE_STATUS_MACROS_H_
#define BATON_COMMON_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define BATON_RETURN_IF_ERROR(expr)                                                     \
  do {                                                                                  \
    if (absl::Status baton_status_ = (expr); !baton_status_.ok()) return baton_status_; \
  } while (false)

#define BATON_CONCAT_INNER_(a, b) a##b
#define BATON_CONCAT_(a, b) BATON_CONCAT_INNER_(a, b)
#define BATON_ASSIGN_OR_RETURN(lhs, expr) \
  BATON_ASSIGN_OR_RETURN_(BATON_CONCAT_(baton_status_or_, __LINE__), lhs, expr)
#define BATON_ASSIGN_OR_RETURN_(tmp, lhs, expr)  \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = std::move(tmp).value()

#endif  // BATON_COMMON_BASE_STATUS_MACROS_H_
