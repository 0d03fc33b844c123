#include "tests/common/backend/cuda/ptx/program.h"

#include <cxxabi.h>

#include <cctype>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "tests/common/backend/cuda/ptx/operations.h"

namespace baton::backend::cuda::ptx {
namespace {

constexpr int kLanes = 32;

int BytesOfType(absl::string_view type) {
  if (type == "pred") return kPredicate;
  for (const auto& [digits, bytes] : {std::pair{"64", 8}, {"32", 4}, {"16", 2}, {"8", 1}}) {
    if (absl::EndsWith(type, digits)) return bytes;
  }
  BATON_CHECK(false) << "a type " << type;
  return 0;
}

uint64_t ParseImmediate(absl::string_view text, bool* ok) {
  *ok = true;
  const auto hexadecimal = [&](absl::string_view digits) {
    uint64_t value = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    *ok = error == std::errc() && end == digits.data() + digits.size();
    return value;
  };
  if (text.size() == 10 && absl::StartsWith(text, "0f")) return hexadecimal(text.substr(2));
  if (text.size() == 18 && absl::StartsWith(text, "0d")) return hexadecimal(text.substr(2));
  if (absl::StartsWith(text, "0x")) return hexadecimal(text.substr(2));
  if (absl::EndsWith(text, "U")) text.remove_suffix(1);
  int64_t value = 0;
  uint64_t natural = 0;
  if (absl::SimpleAtoi(text, &value)) return static_cast<uint64_t>(value);
  *ok = absl::SimpleAtoi(text, &natural);
  return natural;
}

}  // namespace

std::string Demangle(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string demangled = status == 0 ? text : name;
  std::free(text);
  return demangled;
}

// A module, statement by statement.
class ModuleParser {
 public:
  ModuleParser(absl::string_view text, Program& program) : text_(text), program_(program) {}

  void Parse() {
    while (SkipSpace()) {
      start_ = at_;
      if (Take("{") || Take("}") || Take(")") || Take("(")) continue;
      const absl::string_view statement = PeekWord();
      if (statement == ".entry" || absl::StartsWith(statement, ".visible") ||
          absl::StartsWith(statement, ".weak")) {
        TakeWord();
        if (statement == ".entry") ParseKernel();
      } else if (statement == ".global") {
        ParseTable();
      } else if (statement == ".extern") {
        const std::vector<std::string> words = absl::StrSplit(Statement(), ' ', absl::SkipEmpty());
        const std::string& last = words.back();
        extern_shared_ = last.substr(0, last.find('['));
      } else if (statement == ".version" || statement == ".target" ||
                 statement == ".address_size") {
        SkipLine();
      } else {
        Fail("a statement that is not known");
      }
    }
  }

 private:
  [[noreturn]] void Fail(absl::string_view what) const {
    BATON_CHECK(false) << "PTX line " << line_ << ": " << what << ": "
                       << text_.substr(start_, text_.find('\n', start_) - start_);
    std::abort();
  }

  // ---- Characters ----
  bool SkipSpace() {
    while (at_ < text_.size()) {
      if (text_[at_] == '\n') ++line_;
      if (absl::ascii_isspace(static_cast<unsigned char>(text_[at_]))) {
        ++at_;
      } else if (text_.substr(at_, 2) == "//") {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else {
        return true;
      }
    }
    return false;
  }
  bool Take(absl::string_view token) {
    SkipSpace();
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }
  absl::string_view PeekWord() {
    SkipSpace();
    size_t end = at_;
    while (end < text_.size() && (absl::ascii_isalnum(static_cast<unsigned char>(text_[end])) ||
                                  std::strchr("_.$%:", text_[end]) != nullptr)) {
      ++end;
    }
    return text_.substr(at_, end - at_);
  }
  absl::string_view TakeWord() {
    const absl::string_view word = PeekWord();
    if (word.empty()) Fail("expected a word");
    at_ += word.size();
    return word;
  }
  void SkipLine() { at_ = std::min(text_.find('\n', at_), text_.size()); }
  // Up to the semicolon.
  std::string Statement() {
    const size_t end = text_.find(';', at_);
    if (end == absl::string_view::npos) Fail("a statement without an end");
    std::string statement(text_.substr(at_, end - at_));
    for (const char c : statement) line_ += c == '\n' ? 1 : 0;
    at_ = end + 1;
    return statement;
  }

  // ---- A module's tables: .global .align 8 .b8 name[bytes] = {...}; ----
  void ParseTable() {
    const std::string statement = Statement();
    const size_t open = statement.find('['), close = statement.find(']');
    if (open == std::string::npos || close == std::string::npos) Fail("a table without a size");
    const size_t start = statement.find_last_of(" \t", open) + 1;
    size_t bytes = 0;
    if (!absl::SimpleAtoi(statement.substr(open + 1, close - open - 1), &bytes) ||
        !absl::StrContains(statement, ".b8")) {
      Fail("a table that is not of bytes");
    }
    auto table = std::make_unique<std::byte[]>(bytes + 16);
    const size_t values = statement.find('{');
    size_t index = 0;
    if (values != std::string::npos) {
      for (const auto value :
           absl::StrSplit(statement.substr(values + 1, statement.find('}') - values - 1), ',')) {
        int byte = 0;
        if (index == bytes || !absl::SimpleAtoi(value, &byte)) Fail("a table of other values");
        table[index++] = static_cast<std::byte>(byte);
      }
    }
    // From new[]: aligned to 16, which is what the kernels ask for.
    globals_[statement.substr(start, open - start)] = reinterpret_cast<uint64_t>(table.get());
    program_.tables_.push_back(std::move(table));
  }

  // ---- A kernel ----
  void ParseKernel() {
    kernel_ = {};
    scopes_.assign(1, {});
    shared_.clear();
    labels_.clear();
    branches_.clear();
    constants_.clear();
    const std::string mangled(TakeWord());
    kernel_.name = Demangle(mangled);
    if (!Take("(")) Fail("expected parameters");
    const absl::string_view parameters = text_.substr(at_, text_.find(')', at_) - at_);
    parameter_ = absl::StrCat(mangled, "_param_0");
    const size_t open = parameters.find('[');
    if (open == absl::string_view::npos ||
        !absl::SimpleAtoi(parameters.substr(open + 1, parameters.find(']') - open - 1),
                          &kernel_.parameter_bytes)) {
      Fail("expected one parameter, an array of bytes");
    }
    for (const char c : parameters) line_ += c == '\n' ? 1 : 0;
    at_ += parameters.size() + 1;
    kernel_.max_threads = 1;
    while (!Take("{")) {
      const absl::string_view directive = TakeWord();
      const absl::string_view values = text_.substr(at_, text_.find('\n', at_) - at_);
      if (directive == ".maxntid") {
        for (const auto value : absl::StrSplit(values, ',')) {
          int threads = 0;
          if (!absl::SimpleAtoi(value, &threads)) Fail("threads of a block");
          kernel_.max_threads *= threads;
        }
      }
      SkipLine();
    }
    for (int depth = 1; depth > 0;) {
      if (!SkipSpace()) Fail("a kernel without an end");
      if (Take("{")) {
        ++depth;
        scopes_.emplace_back();
      } else if (Take("}")) {
        --depth;
        scopes_.pop_back();
      } else {
        ParseStatement();
      }
    }
    for (const auto& [index, label] : branches_) {
      const auto found = labels_.find(label);
      if (found == labels_.end()) Fail(absl::StrCat("no label ", label));
      kernel_.code[index].target = found->second;
      BATON_CHECK_LT(found->second, kernel_.code.size());
      kernel_.code[found->second].is_label = true;
      if (kernel_.code[index].is_predicated) kernel_.code[index + 1].is_label = true;
    }
    kernel_.static_shared_bytes = (kernel_.static_shared_bytes + 15) / 16 * 16;
    BATON_CHECK(program_.kernels_.emplace(kernel_.name, kernel_).second)
        << "two kernels are named " << kernel_.name;
  }

  void ParseStatement() {
    start_ = at_;
    const absl::string_view word = PeekWord();
    if (absl::StartsWith(word, "$")) {
      labels_[std::string(word.substr(0, word.find(':')))] =
          static_cast<uint32_t>(kernel_.code.size());
      at_ += word.size();
      return;
    }
    if (word == ".reg") return ParseRegisters();
    if (word == ".shared") return ParseShared();
    if (word == ".pragma" || word == ".loc") {
      if (word == ".loc") return SkipLine();
      Statement();
      return;
    }
    if (absl::StartsWith(word, ".")) Fail("a declaration that is not known");
    Instruction instruction;
    instruction.line = line_;
    if (Take("@")) {
      instruction.is_predicated = true;
      instruction.negated = Take("!");
      instruction.predicate = Place(TakeWord(), kPredicate);
    }
    const std::string opcode(TakeWord());
    const std::vector<std::vector<std::string>> operands = Operands();
    Decode(opcode, operands, instruction);
    if (opcode == "membar.gl") kernel_.has_flags = true;
    kernel_.code.push_back(instruction);
  }

  uint32_t Allocate(int bytes) {
    // A predicate: a bit a lane. Vectors of a machine are aligned to their size.
    const uint32_t size = bytes == kPredicate ? 4u : static_cast<uint32_t>(bytes * kLanes);
    const uint32_t place = kernel_.register_bytes;
    kernel_.register_bytes += (size + 63) / 64 * 64;
    return place;
  }
  // .reg .b32 %r<12>; or .reg .pred p;
  void ParseRegisters() {
    TakeWord();
    const int bytes = BytesOfType(TakeWord().substr(1));
    for (const auto declared : absl::StrSplit(Statement(), ',')) {
      const absl::string_view name = absl::StripAsciiWhitespace(declared);
      const size_t open = name.find('<');
      if (open == absl::string_view::npos) {
        scopes_.back()[std::string(name)] = {Allocate(bytes), bytes};
        continue;
      }
      int count = 0;
      if (!absl::SimpleAtoi(name.substr(open + 1, name.find('>') - open - 1), &count)) {
        Fail("a count of registers");
      }
      for (int i = 0; i < count; ++i) {
        scopes_.back()[absl::StrCat(name.substr(0, open), i)] = {Allocate(bytes), bytes};
      }
    }
  }
  // .shared .align 4 .b8 name[16]; or .shared .align 1 .u8 name;
  void ParseShared() {
    const std::vector<std::string> words =
        absl::StrSplit(Statement(), absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
    size_t alignment = 1, count = 1;
    for (size_t i = 0; i + 1 < words.size(); ++i) {
      if (words[i] == ".align" && !absl::SimpleAtoi(words[i + 1], &alignment)) Fail("alignment");
    }
    const std::string& type = words[words.size() - 2];
    const std::string& name = words.back();
    const size_t open = name.find('[');
    if (open != std::string::npos &&
        !absl::SimpleAtoi(name.substr(open + 1, name.find(']') - open - 1), &count)) {
      Fail("a size of shared memory");
    }
    size_t& end = kernel_.static_shared_bytes;
    end = (end + alignment - 1) / alignment * alignment;
    shared_[name.substr(0, open)] = end;
    end += count * static_cast<size_t>(BytesOfType(type));
  }

  // Each operand: its names, several in a vector; an address keeps its brackets.
  std::vector<std::vector<std::string>> Operands() {
    const std::string text = Statement();
    std::vector<std::vector<std::string>> operands;
    bool in_vector = false;
    std::string name;
    const auto end_name = [&] {
      const absl::string_view stripped = absl::StripAsciiWhitespace(name);
      if (!stripped.empty()) {
        if (!in_vector || operands.empty()) operands.emplace_back();
        operands.back().emplace_back(stripped);
      }
      name.clear();
    };
    for (const char c : text) {
      if (c == '{') {
        in_vector = true;
        operands.emplace_back();
      } else if (c == '}' || c == ',') {
        end_name();
        if (c == '}') in_vector = false;
      } else {
        name += c;
      }
    }
    end_name();
    return operands;
  }

  // The place of a register, or of a constant made for an immediate.
  uint32_t Place(absl::string_view name, int bytes) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto found = scope->find(std::string(name));
      if (found == scope->end()) continue;
      if (found->second.bytes != bytes) {
        Fail(absl::StrCat("register ", name, " has ", found->second.bytes, " bytes, expected ",
                          bytes));
      }
      return found->second.place;
    }
    bool ok = false;
    uint64_t value = 0;
    if (const auto special = SpecialOf(name); special.second) {
      if (bytes != 4) Fail("a special register of another size");
      const uint32_t place = Allocate(4);
      kernel_.specials.emplace_back(place, special.first);
      return place;
    }
    if (const auto shared = shared_.find(std::string(name)); shared != shared_.end()) {
      value = shared->second;
      ok = true;
    } else if (!extern_shared_.empty() && name == extern_shared_) {
      // Behind the static arrays, which are declared before they are used.
      value = (kernel_.static_shared_bytes + 15) / 16 * 16;
      ok = true;
    } else if (const auto global = globals_.find(std::string(name)); global != globals_.end()) {
      value = global->second;
      ok = true;
    } else if (name == parameter_) {
      ok = true;
    } else {
      value = ParseImmediate(name, &ok);
    }
    if (!ok) Fail(absl::StrCat("an operand that is not known: ", name));
    if (bytes == kPredicate) value = value != 0 ? ~uint64_t{0} : 0;
    const auto [constant, is_new] = constants_.try_emplace({bytes, value}, 0);
    if (is_new) {
      constant->second = Allocate(bytes);
      kernel_.constants.push_back({constant->second, bytes, value});
    }
    return constant->second;
  }
  static std::pair<Special, bool> SpecialOf(absl::string_view name) {
    static const std::map<absl::string_view, Special> specials = {
        {"%tid.x", Special::kTidX},       {"%ctaid.x", Special::kCtaidX},
        {"%ctaid.y", Special::kCtaidY},   {"%ctaid.z", Special::kCtaidZ},
        {"%ntid.x", Special::kNtidX},     {"%nctaid.x", Special::kNctaidX},
        {"%nctaid.y", Special::kNctaidY}, {"%nctaid.z", Special::kNctaidZ}};
    const auto found = specials.find(name);
    return found == specials.end() ? std::pair{Special::kTidX, false}
                                   : std::pair{found->second, true};
  }
  int BytesOfRegister(absl::string_view name) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto found = scope->find(std::string(name));
      if (found != scope->end()) return found->second.bytes;
    }
    return -1;
  }

  // [%rd1+-8], [name+96], [%r1]: the base's place and the offset.
  void Address(const std::string& text, Instruction& instruction, size_t operand,
               absl::string_view space) {
    if (text.size() < 3 || text.front() != '[' || text.back() != ']') Fail("expected an address");
    absl::string_view inside(text);
    inside = inside.substr(1, inside.size() - 2);
    const size_t plus = inside.find('+');
    if (plus != absl::string_view::npos &&
        !absl::SimpleAtoi(inside.substr(plus + 1), &instruction.offset)) {
      Fail("an offset");
    }
    const absl::string_view base = inside.substr(0, plus);
    instruction.from[operand] = Place(base, space == "shared" ? 4 : 8);
  }

  void Decode(const std::string& opcode, const std::vector<std::vector<std::string>>& operands,
              Instruction& instruction) {
    const std::vector<std::string> parts = absl::StrSplit(opcode, '.');
    if (parts[0] == "bra") {
      instruction.flow = Flow::kBranch;
      branches_.emplace_back(kernel_.code.size(), operands.at(0).at(0));
    } else if (opcode == "ret") {
      instruction.flow = Flow::kExit;
    } else if (opcode == "trap") {
      instruction.flow = Flow::kTrap;
    } else if (opcode == "bar.sync") {
      if (operands.size() != 1 || operands[0][0] != "0") Fail("expected barrier 0 of all threads");
      instruction.flow = Flow::kBarrier;
    } else if (parts[0] == "ld" || parts[0] == "st") {
      DecodeMemory(parts, operands, instruction);
    } else if (parts[0] == "atom") {
      const MemoryOperation operation = FindAtomic(opcode);
      if (operation.handler == nullptr) Fail("an atomic that is not known");
      instruction.handler = operation.handler;
      instruction.to[0] = Place(operands.at(0).at(0), operation.bytes);
      Address(operands.at(1).at(0), instruction, 0, parts[1]);
      instruction.from[1] = Place(operands.at(2).at(0), operation.bytes);
    } else if (absl::StartsWith(opcode, "cp.async.cg.")) {
      const Operation* operation = FindOperation("cp.async.cg.shared.global");
      if (opcode != "cp.async.cg.shared.global" || operands.at(2).at(0) != "16") Fail("a copy");
      instruction.handler = operation->handler;
      Address(operands.at(0).at(0), instruction, 0, "shared");
      if (instruction.offset != 0) Fail("a copy to an offset");
      Address(operands.at(1).at(0), instruction, 1, "global");
      if (instruction.offset != 0) Fail("a copy from an offset");
      instruction.from[2] = Place(operands.at(3).at(0), 4);
    } else if (parts[0] == "ldmatrix") {
      const Operation* operation = FindOperation(opcode);
      if (operation == nullptr || operands.at(0).size() != operation->to.size()) Fail("matrices");
      instruction.handler = operation->handler;
      instruction.flow = operation->flow;
      for (size_t i = 0; i < operation->to.size(); ++i) {
        instruction.to[i] = Place(operands[0][i], operation->to[i]);
      }
      Address(operands.at(1).at(0), instruction, 0, "shared");
    } else if (opcode == "prefetch.global.L2") {
      instruction.handler = FindOperation(opcode)->handler;
      Address(operands.at(0).at(0), instruction, 0, "global");
    } else {
      DecodeOperation(opcode, operands, instruction);
    }
  }

  void DecodeMemory(const std::vector<std::string>& parts,
                    const std::vector<std::vector<std::string>>& operands,
                    Instruction& instruction) {
    bool read_only = false;
    for (size_t i = 2; i + 1 < parts.size(); ++i) {
      if (parts[i] == "nc") {
        read_only = true;
      } else if (parts[i] == "v2" || parts[i] == "v4") {
        instruction.vector = static_cast<uint8_t>(parts[i][1] - '0');
      } else if (parts[i] != "cg" && parts[i] != "L1::no_allocate" && parts[i] != "L2::128B") {
        Fail("an access that is not known");
      }
    }
    const bool is_load = parts[0] == "ld";
    const std::vector<std::string>& values = operands.at(is_load ? 0 : 1);
    if (values.size() != instruction.vector) Fail("a vector of another size");
    // Immediates have the size of the access.
    const int in_memory = BytesOfType(parts.back());
    const int declared = BytesOfRegister(values[0]);
    const int bytes = declared > 0 ? declared : std::max(in_memory, 2);
    const MemoryOperation operation = is_load ? FindLoad(parts[1], read_only, parts.back(), bytes)
                                              : FindStore(parts[1], parts.back(), bytes);
    if (operation.handler == nullptr) Fail("an access of types that are not known");
    instruction.handler = operation.handler;
    Address(operands.at(is_load ? 1 : 0).at(0), instruction, 0, parts[1]);
    for (size_t i = 0; i < values.size(); ++i) {
      (is_load ? instruction.to[i] : instruction.from[i + 1]) = Place(values[i], bytes);
    }
  }

  void DecodeOperation(const std::string& opcode,
                       const std::vector<std::vector<std::string>>& operands,
                       Instruction& instruction) {
    std::string name = opcode;
    // A move that packs or unpacks is another operation.
    if (absl::StartsWith(opcode, "mov.b") && operands.size() == 2) {
      if (operands[0].size() == 2) absl::StrAppend(&name, ".unpack");
      if (operands[1].size() == 2) absl::StrAppend(&name, ".pack");
    }
    const Operation* operation = FindOperation(name);
    if (operation == nullptr) Fail(absl::StrCat("an instruction that is not known: ", name));
    instruction.handler = operation->handler;
    instruction.flow = operation->flow;
    std::vector<std::string> names;
    for (const auto& operand : operands) names.insert(names.end(), operand.begin(), operand.end());
    // Of shfl's second result, whether a lane was in range, nothing is made.
    if (absl::StartsWith(opcode, "shfl.sync")) names[0] = names[0].substr(0, names[0].find('|'));
    if (names.size() != operation->to.size() + operation->from.size()) {
      Fail(absl::StrCat(names.size(), " operands"));
    }
    for (size_t i = 0; i < names.size(); ++i) {
      if (i < operation->to.size()) {
        instruction.to[i] = Place(names[i], operation->to[i]);
      } else {
        const size_t from = i - operation->to.size();
        instruction.from[from] = Place(names[i], operation->from[from]);
      }
    }
    if (absl::StartsWith(opcode, "cp.async.wait_group")) {
      bool ok = false;
      instruction.offset = static_cast<int64_t>(ParseImmediate(names[0], &ok));
    }
  }

  const absl::string_view text_;
  Program& program_;
  size_t at_ = 0, start_ = 0;  // start_: of the statement
  int line_ = 1;
  std::string extern_shared_, parameter_;
  std::map<std::string, uint64_t> globals_;  // address
  struct Register {
    uint32_t place = 0;
    int bytes = kPredicate;
  };
  // Of the kernel:
  Kernel kernel_;
  std::vector<std::map<std::string, Register>> scopes_;
  std::map<std::string, size_t> shared_;  // offset
  std::map<std::string, uint32_t> labels_;
  std::vector<std::pair<size_t, std::string>> branches_;
  std::map<std::pair<int, uint64_t>, uint32_t> constants_;
};

void Program::Add(absl::string_view ptx) { ModuleParser(ptx, *this).Parse(); }

const Kernel* Program::Find(const std::string& name) const {
  const auto found = kernels_.find(name);
  return found == kernels_.end() ? nullptr : &found->second;
}

}  // namespace baton::backend::cuda::ptx
