// How many files and connections this process may have open.
#ifndef BATON_COMMON_BASE_FILE_LIMIT_H_
#define BATON_COMMON_BASE_FILE_LIMIT_H_

namespace baton {

// Raises the soft limit to the hard one. Shells and containers start processes with a soft limit of
// 1,024 or so, for the sake of programs that call select().
void RaiseFileLimit();

}  // namespace baton

#endif  // BATON_COMMON_BASE_FILE_LIMIT_H_
