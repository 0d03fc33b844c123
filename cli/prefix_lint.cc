#include "cli/prefix_lint.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/base/exit_code.h"

namespace baton::cli {
namespace {

constexpr size_t kMaxLintedBytes = 16 << 20;
constexpr size_t kMaxFindingBytes = 80;
// Each takes a pass over the rest of the file.
constexpr int kMaxUnclosed = 100;

struct Pattern {
  const char* kind;
  const char* suggestion;
  std::regex regex;
};

// Repetitions are bounded: the matcher recurses with the length of a match. The first that matches
// a place names it.
const std::vector<Pattern>& Patterns() {
  constexpr auto kFlags = std::regex::ECMAScript | std::regex::icase | std::regex::optimize;
  static constexpr char kTime[] =
      "move it behind the stable text, or round it, e.g. to the day the prompt was written";
  static constexpr char kId[] = "leave it out, or move it behind the stable text";
  static constexpr char kMonth[] =
      "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}\\.?";
  static const auto* const patterns = new std::vector<Pattern>{
      {"uuid", kId,
       std::regex("\\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\\b", kFlags)},
      // 2026-11-23, 2026-11-23T10:15, 2026-11-23 10:15:00.123+01:00
      {"timestamp", kTime,
       std::regex(
           "\\b(?:19|20)\\d{2}-[01]\\d-[0-3]\\d(?:[t ]\\d{2}:\\d{2}(?::\\d{2})?(?:\\.\\d{1,9}"
           ")?(?:z|[+-]\\d{2}:?\\d{2})?)?",
           kFlags)},
      // 11/23/2026, 23.11.2026
      {"timestamp", kTime, std::regex("\\b\\d{1,2}([./])\\d{1,2}\\1(?:19|20)\\d{2}\\b", kFlags)},
      // 23 November 2026; November 23, 2026
      {"timestamp", kTime,
       std::regex(absl::StrCat("\\b\\d{1,2}\\.? ", kMonth, " (?:19|20)\\d{2}\\b"), kFlags)},
      {"timestamp", kTime,
       std::regex(absl::StrCat("\\b", kMonth, " \\d{1,2}(?:st|nd|rd|th)?,? (?:19|20)\\d{2}\\b"),
                  kFlags)},
      // 10:15:00, 10:15 am
      {"timestamp", kTime,
       std::regex("\\b[0-2]?\\d:[0-5]\\d(?::[0-5]\\d(?:\\.\\d{1,9})?| ?[ap]m\\b)", kFlags)},
      // Seconds or milliseconds since 1970, of this century.
      {"timestamp", kTime, std::regex("\\b1[0-9]{9}(?:[0-9]{3})?\\b", kFlags)},
      {"request_id", kId,
       std::regex("\\b(?:req|request|trace|span|session|conversation|correlation|message|run|call)"
                  "[_ -]?id\"?\\s{0,8}[:=]\\s{0,8}\"?[a-z0-9_.:/-]{4,64}",
                  kFlags)},
      {"request_id", kId,
       std::regex("\\b(?:req|chatcmpl|cmpl|sess|session|run|msg|call|thread|trace)[_-]"
                  "(?=[a-z0-9]{0,63}\\d)[a-z0-9]{8,64}\\b",
                  kFlags)},
      {"counter", "leave it out, or move it behind the stable text",
       std::regex("\\b(?:request|turn|attempt|call|message|query|session|run|visitor|user)\\s{0,2}"
                  "(?:#|no\\.?|nr\\.?|number)\\s{0,2}:?\\s{0,2}\\d{1,18}\\b",
                  kFlags)},
      {"counter", "leave it out, or move it behind the stable text",
       std::regex("\"(?:nonce|seq|sequence|counter|turn|attempt|request_count|request_number)\""
                  "\\s{0,8}:\\s{0,8}\\d{1,18}",
                  kFlags)},
      {"hex", kId,
       std::regex("\\b(?:0x)?(?=[0-9a-f]{0,63}\\d)(?=[0-9]{0,63}[a-f])[0-9a-f]{16,64}\\b", kFlags)},
  };
  return *patterns;
}

int ColumnOf(absl::string_view line, size_t byte) {
  return 1 + static_cast<int>(std::count_if(line.begin(), line.begin() + byte, [](char c) {
           return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
         }));
}

void LintLine(const std::string& file, int number, const std::string& line,
              std::vector<LintFinding>* findings) {
  std::vector<std::pair<size_t, size_t>> taken;
  for (const Pattern& pattern : Patterns()) {
    for (std::sregex_iterator it(line.begin(), line.end(), pattern.regex), end; it != end; ++it) {
      const auto begin = static_cast<size_t>(it->position());
      const size_t length = it->str().size();
      const bool overlaps = std::any_of(taken.begin(), taken.end(), [&](const auto& other) {
        return begin < other.first + other.second && other.first < begin + length;
      });
      if (overlaps) continue;
      taken.emplace_back(begin, length);
      findings->push_back(
          {file, number, ColumnOf(line, begin), pattern.kind, it->str(), pattern.suggestion});
    }
  }
}

// One past the brace that closes the one at `begin`; npos if none does.
size_t EndOfObject(absl::string_view text, size_t begin) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = begin; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}' && --depth == 0) {
      return i + 1;
    }
  }
  return absl::string_view::npos;
}

// The order of the keys of each object within `value`, itself included.
void CollectOrders(const nlohmann::ordered_json& value,
                   std::vector<std::vector<std::string>>* orders) {
  if (value.is_object()) {
    std::vector<std::string> keys;
    for (const auto& [key, member] : value.items()) keys.push_back(key);
    if (keys.size() > 1) orders->push_back(std::move(keys));
  }
  if (!value.is_structured()) return;
  for (const auto& member : value) CollectOrders(member, orders);
}

// The first order of each set of keys, and where it was.
struct FirstOrder {
  std::vector<std::string> keys;
  std::string place;
};
using FirstOrders = std::map<std::set<std::string>, FirstOrder>;

void LintObjects(const LintedFile& file, FirstOrders* firsts, std::vector<LintFinding>* findings) {
  const absl::string_view text = file.text;
  int unclosed = 0;
  for (size_t begin = text.find('{'); begin != absl::string_view::npos;
       begin = text.find('{', begin + 1)) {
    const size_t end = EndOfObject(text, begin);
    if (end == absl::string_view::npos) {
      if (++unclosed > kMaxUnclosed) return;
      continue;
    }
    const absl::string_view object = text.substr(begin, end - begin);
    const auto parsed = nlohmann::ordered_json::parse(object.begin(), object.end(), nullptr,
                                                      /*allow_exceptions=*/false);
    if (parsed.is_discarded()) continue;
    const absl::string_view before = text.substr(0, begin);
    const int line = 1 + static_cast<int>(std::count(before.begin(), before.end(), '\n'));
    const size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
    std::vector<std::vector<std::string>> orders;
    CollectOrders(parsed, &orders);
    for (const std::vector<std::string>& keys : orders) {
      const auto [first, is_new] =
          firsts->emplace(std::set<std::string>(keys.begin(), keys.end()),
                          FirstOrder{keys, absl::StrCat(file.name, ":", line)});
      if (is_new || first->second.keys == keys) continue;
      findings->push_back({file.name, line, ColumnOf(text.substr(line_begin), begin - line_begin),
                           "json_key_order", absl::StrJoin(keys, ", "),
                           absl::StrCat("sort the keys when you write JSON; ", first->second.place,
                                        " has ", absl::StrJoin(first->second.keys, ", "))});
    }
    begin = end - 1;
  }
}

std::string Clipped(std::string text) {
  if (text.size() <= kMaxFindingBytes) return text;
  size_t end = kMaxFindingBytes;
  while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // whole characters
  return text.substr(0, end) + "...";
}

}  // namespace

std::vector<LintFinding> LintPrefixes(const std::vector<LintedFile>& files) {
  std::vector<LintFinding> all;
  FirstOrders firsts;
  for (const LintedFile& file : files) {
    std::vector<LintFinding> findings;
    int number = 0;
    for (size_t begin = 0; begin < file.text.size();) {
      const size_t end = std::min(file.text.find('\n', begin), file.text.size());
      LintLine(file.name, ++number, file.text.substr(begin, end - begin), &findings);
      begin = end + 1;
    }
    LintObjects(file, &firsts, &findings);
    std::stable_sort(findings.begin(), findings.end(), [](const auto& a, const auto& b) {
      return std::pair(a.line, a.column) < std::pair(b.line, b.column);
    });
    std::move(findings.begin(), findings.end(), std::back_inserter(all));
  }
  return all;
}

int RunPrefixLint(const std::vector<std::string>& paths, bool json, std::ostream& out,
                  std::ostream& err) {
  std::vector<LintedFile> files;
  for (const std::string& path : paths) {
    std::ifstream file(path, std::ios::binary);
    std::string text(kMaxLintedBytes + 1, '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(file.gcount()));
    if (file.bad() || !file.eof()) {
      err << "baton prefix lint: " << path << " cannot be read, or has more than "
          << kMaxLintedBytes << " bytes" << std::endl;
      return kExitUsage;
    }
    files.push_back({path, std::move(text)});
  }
  const std::vector<LintFinding> findings = LintPrefixes(files);
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const LintFinding& f : findings) {
    if (json) {
      list.push_back({{"file", f.file},
                      {"line", f.line},
                      {"column", f.column},
                      {"kind", f.kind},
                      {"text", f.text},
                      {"suggestion", f.suggestion}});
    } else {
      out << f.file << ":" << f.line << ":" << f.column << ": " << f.kind << ": " << Clipped(f.text)
          << ": " << f.suggestion << "\n";
    }
  }
  if (json) {
    const nlohmann::ordered_json object = {{"findings", std::move(list)}};
    // Bytes that are not UTF-8 are replaced.
    out << object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
  }
  out << std::flush;
  return findings.empty() ? kExitOk : kExitFailure;
}

}  // namespace baton::cli
