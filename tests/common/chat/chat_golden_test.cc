// Everything that make_golden.py rendered with jinja2, rendered by Baton: the same text, or both
// refuse. argv: the file that make_golden.py wrote.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/civil_time.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/chat/chat_template.h"
#include "common/chat/text.h"
#include "common/json/json.h"

namespace baton::chat {
namespace {

constexpr int kMinTexts = 3'000;
constexpr int kMinProbes = 600;
constexpr int kMinTraced = 2'000;
constexpr size_t kMaxShownFailures = 20;

std::string& GoldenFile() {
  static std::string& file = *new std::string;
  return file;
}

// Of make_golden.py.
absl::Time Now() {
  return absl::FromCivil(absl::CivilSecond(2026, 3, 5, 7, 8, 9), absl::UTCTimeZone());
}

// The texts around the first byte that differs.
std::string Difference(const std::string& expected, const std::string& found) {
  size_t at = 0;
  while (at < expected.size() && at < found.size() && expected[at] == found[at]) ++at;
  const size_t start = at < 60 ? 0 : at - 60;
  const auto part = [&](const std::string& text) {
    return start < text.size() ? absl::Utf8SafeCEscape(text.substr(start, 140)) : "";
  };
  return absl::StrCat("at byte ", at, "\nexpected …", part(expected), "\nfound    …", part(found));
}

// The first bytes of Armenian letters, which have upper and lower case and stand in no template.
bool BeginsArmenianLetter(char byte) {
  return static_cast<unsigned char>(byte) >= 0xD4 && static_cast<unsigned char>(byte) <= 0xD6;
}

// Latin letters of all strings become Armenian ones, except in roles.
void Transliterate(json::Value* value) {
  for (size_t i = 0; i < value->items.size(); ++i) {
    if (i < value->keys.size() && value->keys[i] == "role") continue;
    Transliterate(&value->items[i]);
  }
  std::string foreign;
  for (const char c : value->scalar.text) {
    if (absl::ascii_islower(c)) {
      AppendCodePoint(U'\u0561' + static_cast<char32_t>(c - 'a'), &foreign);
    } else if (absl::ascii_isupper(c)) {
      AppendCodePoint(U'\u0531' + static_cast<char32_t>(c - 'A'), &foreign);
    } else {
      foreign += c;
    }
  }
  value->scalar.text = foreign;
}

class Comparison {
 public:
  void Read(const json::Value& line) {
    const std::string& kind = line.items[0].scalar.text;
    const std::string& name = line.items[1].scalar.text;
    if (kind == "variables") {
      variables_[name] = line.items[2];
    } else if (kind == "template") {
      source_ = line.items[2].scalar.text;
      template_ = ChatTemplate::Parse(source_, name);
    } else {
      Compare(name, line.items[2].scalar.text, line.items[3]);
    }
  }

  int texts = 0;
  int probes = 0;
  int failures = 0;
  int traced = 0;

 private:
  // Renders `variables` with Armenian letters in place of the Latin ones: no template has any, so
  // all Armenian letters of the text must count as the request's.
  void CheckOrigins(const std::string& name, const json::Value& variables) {
    json::Value foreign = variables;
    Transliterate(&foreign);
    const auto text = template_->Render(foreign, json::Value(), Now());
    if (!text.ok()) return;
    size_t found = 0;
    for (size_t at = 0; at < text->text.size(); ++at) {
      if (!BeginsArmenianLetter(text->text[at])) continue;
      ++found;
      ASSERT_TRUE(Overlaps(text->from_request, at, at + 1)) << name << " " << source_ << "\n"
                                                            << text->text.substr(0, 400);
    }
    if (found > 0) ++traced;
    // If all variables are the model's, none of the text is the request's.
    const auto plain = template_->Render(json::Value(), foreign, Now());
    ASSERT_TRUE(plain.ok()) << plain.status();
    ASSERT_EQ(plain->text, text->text) << name << " " << source_;
    // Names of arguments count as the request's, as they may be keys of its objects.
    if (!absl::StrContains(source_, "dict(") && !absl::StrContains(source_, "kwargs")) {
      ASSERT_TRUE(plain->from_request.empty()) << name << " " << source_;
    }
  }

  absl::StatusOr<std::string> Rendered(const json::Value& variables) const {
    if (!template_.ok()) return template_.status();
    BATON_ASSIGN_OR_RETURN(const TracedText text,
                           template_->Render(variables, json::Value(), Now()));
    return text.text;
  }

  void Compare(const std::string& name, const std::string& variables, const json::Value& expected) {
    const absl::StatusOr<std::string> found = Rendered(variables_.at(variables));
    if (template_.ok()) CheckOrigins(name, variables_.at(variables));
    const bool is_probe = absl::StartsWith(name, "probe ");
    ++(is_probe ? probes : texts);
    const bool refused = expected.is_null();
    if (refused ? !found.ok() : found.ok() && *found == expected.scalar.text) return;
    // Shows the first failure of each template.
    if (++failures > 1 && (shown_.size() == kMaxShownFailures || shown_.contains(name))) return;
    shown_.insert(name);
    ADD_FAILURE() << name << (is_probe ? absl::StrCat(" ", source_) : "") << " with " << variables
                  << (refused       ? "\njinja2 refuses, found " + absl::Utf8SafeCEscape(*found)
                      : !found.ok() ? "\nfound " + found.status().ToString() + "\nexpected " +
                                          absl::Utf8SafeCEscape(expected.scalar.text.substr(0, 200))
                                    : "\n" + Difference(expected.scalar.text, *found));
  }

  std::map<std::string, json::Value> variables_;
  std::set<std::string> shown_;
  std::string source_;
  absl::StatusOr<ChatTemplate> template_ = absl::UnknownError("no template was read");
};

TEST(ChatGoldenTest, EqualsJinja2) {
  std::ifstream file(GoldenFile());
  ASSERT_TRUE(file.is_open()) << GoldenFile() << ": make_golden.py writes this file";
  Comparison comparison;
  for (std::string line; std::getline(file, line);) {
    const auto parsed = json::Parse(line, "golden");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    comparison.Read(*parsed);
  }
  EXPECT_EQ(comparison.failures, 0);
  EXPECT_GE(comparison.texts, kMinTexts);
  EXPECT_GE(comparison.probes, kMinProbes);
  EXPECT_GE(comparison.traced, kMinTraced);
}

}  // namespace
}  // namespace baton::chat

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 2) {
    fprintf(stderr, "usage: %s <file written by make_golden.py>\n", argv[0]);
    return 2;
  }
  baton::chat::GoldenFile() = argv[1];
  return RUN_ALL_TESTS();
}
