// Random ids that do not repeat: epochs, request ids, transfer ids. Thread-safe.
#ifndef BATON_COMMON_BASE_RANDOM_ID_H_
#define BATON_COMMON_BASE_RANDOM_ID_H_

#include <cstdint>
#include <string>

namespace baton {

uint64_t RandomId64();       // never 0, which means "none" on the wire
std::string RandomIdText();  // 16 lower-case hex digits

}  // namespace baton

#endif  // BATON_COMMON_BASE_RANDOM_ID_H_
