// Clang's libFuzzer on one target, which BATON_FUZZ_TARGET names. scripts/fuzz runs it.
// "--seeds DIR" writes the target's seeds into DIR and ends.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "tests/fuzz/fuzz_target.h"

static baton::fuzz::FuzzFunction run = nullptr;

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const char* const name = getenv("BATON_FUZZ_TARGET");
  for (const baton::fuzz::FuzzTarget& target : baton::fuzz::Targets()) {
    if (name == nullptr) {
      puts(target.name);
      continue;
    }
    if (strcmp(name, target.name) != 0) continue;
    run = target.run;
    if (*argc == 3 && strcmp((*argv)[1], "--seeds") == 0) {
      int number = 0;
      for (const std::string& seed : target.seeds) {
        std::ofstream((*argv)[2] + ("/seed" + std::to_string(number++)), std::ios::binary) << seed;
      }
      exit(0);
    }
  }
  if (run == nullptr) {
    if (name != nullptr) fprintf(stderr, "no such target: %s\n", name);
    exit(name != nullptr);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  run({reinterpret_cast<const char*>(data), size});
  return 0;
}
