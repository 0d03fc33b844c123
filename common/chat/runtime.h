// The budgets of one rendering, and the only way to make values that count against them.
//
// One thread.
#ifndef BATON_COMMON_CHAT_RUNTIME_H_
#define BATON_COMMON_CHAT_RUNTIME_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/chat/chat_template.h"
#include "common/chat/value.h"
#include "common/json/json.h"

namespace baton::chat {

// Containers nest no deeper; longer chains of lists in lists are an error.
inline constexpr int kMaxValueDepth = 100;

// What jinja2 reports as an exception of a running template: INVALID_ARGUMENT, reason
// "CHAT_TEMPLATE_FAILED".
absl::Status Failure(absl::string_view message);

class Runtime {
 public:
  Runtime(const RenderLimits& limits, absl::Time now) : limits_(limits), now_(now) {}
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  absl::Time now() const { return now_; }
  const RenderLimits& limits() const { return limits_; }

  // RESOURCE_EXHAUSTED, reason "CHAT_TEMPLATE_LIMIT", once the steps are used up.
  absl::Status Step(size_t steps = 1);
  absl::Status StepForBytes(size_t bytes) { return Step(1 + bytes / 64); }
  // RESOURCE_EXHAUSTED if a value of `bytes` does not fit any more.
  absl::Status CheckRoom(size_t bytes) const;
  // Counts one level of nested calls until its destruction.
  class Level {
   public:
    explicit Level(Runtime& runtime) : runtime_(runtime) { ++runtime_.level_; }
    ~Level() { --runtime_.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    absl::Status Check() const;

   private:
    Runtime& runtime_;
  };

  // Each fails with RESOURCE_EXHAUSTED if the value exceeds the budget or nests too deep.
  absl::StatusOr<Value> MakeString(TracedText text, bool markup = false);
  absl::StatusOr<Value> MakeString(std::string text, bool markup = false) {  // the template's text
    return MakeString(TracedText(std::move(text)), markup);
  }
  // A part of a string, which is markup if the whole is. REQUIRES: as for TracedText::AppendPart.
  absl::StatusOr<Value> MakePart(const Value& whole, absl::string_view part) {
    return MakeString(PartOf(whole.traced(), part), whole.is_markup());
  }
  absl::StatusOr<Value> MakeSequence(Flavor flavor, std::vector<Value> items);
  absl::StatusOr<Value> MakeList(std::vector<Value> items) {
    return MakeSequence(Flavor::kList, std::move(items));
  }
  // Fails also for a key that is not hashable.
  absl::StatusOr<Value> MakeDict(DictRep::Entries entries);
  Value MakeUndefined(std::string message);
  // The strings of the result, keys included, have this origin, except the roles of messages: see
  // IsKnownRole in runtime.cc.
  absl::StatusOr<Value> FromJson(json::Value json, Origin origin) {
    return FromJson(std::move(json), origin, 0);
  }
  // The bytes of all strings that FromJson has made, without keys.
  size_t variable_bytes() const { return variable_bytes_; }

  // A charge for an object of `bytes`, which the caller has checked.
  HeapCharge Charge(size_t bytes) { return HeapCharge(&heap_, bytes); }
  // Keeps an object to which values may refer in circles, until the rendering ends.
  Value Adopt(std::unique_ptr<Object> object);

 private:
  absl::StatusOr<Value> FromJson(json::Value json, Origin origin, int depth);
  // A string that variables have again and again, such as "role", which one value is enough for.
  absl::StatusOr<Value> MakeName(std::string text, Origin origin);

  const RenderLimits limits_;
  const absl::Time now_;
  Heap heap_;
  std::vector<std::unique_ptr<Object>> adopted_;
  std::vector<Value> names_;
  size_t variable_bytes_ = 0;
  size_t steps_ = 0;
  int level_ = 0;
};

// Matches arguments with the names of parameters; kMissing for those left out. Fails for too many,
// for an unknown name, for one given twice, and if one of the first `required` is missing.
absl::StatusOr<std::vector<Value>> BindArguments(absl::string_view callee, Arguments arguments,
                                                 absl::Span<const absl::string_view> names,
                                                 size_t required);

// A function that templates can call, of the runtime alone.
using Builtin = absl::StatusOr<Value> (*)(Runtime& runtime, Arguments arguments);

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_RUNTIME_H_
