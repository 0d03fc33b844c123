#include "tests/common/backend/cuda/ptx/interpreter.h"

#include <elf.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton::backend::cuda::ptx {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  BATON_CHECK(file.good()) << "reading " << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// Where this program lies in memory beyond where it was linked.
uintptr_t LoadAddress() {
  uintptr_t address = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) {
        *static_cast<uintptr_t*>(to) = info->dlpi_addr;
        return 1;  // the first is the program
      },
      &address);
  return address;
}

// The names of this program's functions by address: kernels have internal linkage, so the dynamic
// linker does not know them.
std::map<uintptr_t, std::string> FunctionNames() {
  const std::string program = ReadFile("/proc/self/exe");
  const auto at = [&]<class T>(uint64_t offset, T& to) {
    BATON_CHECK(offset <= program.size() && program.size() - offset >= sizeof(T))
        << "a short program file";
    std::memcpy(&to, program.data() + offset, sizeof(T));
  };
  Elf64_Ehdr header;
  at(0, header);
  std::map<uintptr_t, std::string> names;
  const uintptr_t base = LoadAddress();
  for (int s = 0; s < header.e_shnum; ++s) {
    Elf64_Shdr section, strings;
    at(header.e_shoff + static_cast<uint64_t>(s) * header.e_shentsize, section);
    if (section.sh_type != SHT_SYMTAB) continue;
    at(header.e_shoff + uint64_t{section.sh_link} * header.e_shentsize, strings);
    for (uint64_t offset = 0; offset < section.sh_size; offset += sizeof(Elf64_Sym)) {
      Elf64_Sym symbol;
      at(section.sh_offset + offset, symbol);
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_value == 0) continue;
      const char* name = program.data() + strings.sh_offset + symbol.st_name;
      if (std::strstr(name, "Kernel") != nullptr) names[base + symbol.st_value] = Demangle(name);
    }
  }
  return names;
}

class FromEnvironment {
 public:
  FromEnvironment() {
    const char* directory = std::getenv("BATON_PTX");
    if (directory == nullptr) return;
    int architecture = 80;
    if (const char* value = std::getenv("BATON_PTX_ARCHITECTURE"); value != nullptr) {
      BATON_CHECK(absl::SimpleAtoi(value, &architecture)) << "BATON_PTX_ARCHITECTURE";
    }
    std::map<int, Program> programs;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      for (const int wanted : {75, architecture}) {
        if (absl::EndsWith(entry.path().string(), absl::StrCat("-", wanted, ".ptx"))) {
          programs[wanted].Add(ReadFile(entry.path()));
        }
      }
    }
    MachineOptions options;
    if (std::getenv("BATON_PTX_TRUNCATED") != nullptr) {
      options.truncated_sum = architecture >= 90 ? 16 : architecture >= 80 ? 8 : 4;
    }
    interpreter_ = std::make_unique<Interpreter>(std::move(programs), options);
    emulated::SetKernelRunner(interpreter_.get());
  }
  ~FromEnvironment() { emulated::SetKernelRunner(nullptr); }

 private:
  std::unique_ptr<Interpreter> interpreter_;
};
const FromEnvironment from_environment;

}  // namespace

Interpreter::Interpreter(std::map<int, Program> programs, MachineOptions options) {
  for (auto& [architecture, program] : programs) {
    devices_[architecture] = std::make_unique<Device>(std::move(program), options);
  }
}

Interpreter::~Interpreter() {
  for (const auto& [architecture, device] : devices_) {
    for (const auto& [kernel, launches] : device->launches) {
      std::printf("interpreted %d launches of %s at sm_%d\n", launches, kernel.c_str(),
                  architecture);
    }
  }
}

void Interpreter::Run(const emulated::LaunchShape& shape, const emulated::Options& options,
                      const void* kernel, const void* arguments, size_t argument_bytes) {
  static const std::map<uintptr_t, std::string>& names =
      *new std::map<uintptr_t, std::string>(FunctionNames());
  const auto name = names.find(reinterpret_cast<uintptr_t>(kernel));
  BATON_CHECK(name != names.end()) << "a kernel without a name";
  const auto device =
      options.compute_capability < 80 ? devices_.find(75) : std::prev(devices_.end());
  BATON_CHECK(device != devices_.end()) << "no PTX for capability " << options.compute_capability;
  const Kernel* found = device->second->program.Find(name->second);
  BATON_CHECK(found != nullptr) << "no PTX of " << name->second;
  ++device->second->launches[name->second];
  device->second->machine.Run(*found, shape, options.seed, arguments, argument_bytes);
}

}  // namespace baton::backend::cuda::ptx
