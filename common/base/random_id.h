// Identities that nothing outside can guess or repeat: epochs, request ids, transfer ids.
#ifndef BATON_COMMON_BASE_RANDOM_ID_H_
#define BATON_COMMON_BASE_RANDOM_ID_H_

#include <cstdint>
#include <string>

namespace baton {

uint64_t RandomId64();        // never 0, so that 0 can mean "none" on the wire; thread-safe
std::string RandomIdText();   // 16 lower-case hex digits

}  // namespace baton

#endif  // BATON_COMMON_BASE_RANDOM_ID_H_
