#include "common/chat/globals.h"

#include <algorithm>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/chat/methods.h"
#include "common/chat/operators.h"
#include "common/chat/printing.h"

namespace baton::chat {
namespace {

constexpr int64_t kMaxRange = 100'000;  // as in jinja2's sandbox
constexpr size_t kMaxTimeFormatBytes = 4096;
constexpr size_t kMaxRefusalBytes = 4096;

class FunctionObject : public Object {
 public:
  FunctionObject(HeapCharge charge, Builtin function)
      : Object(std::move(charge)), function_(function) {}
  absl::string_view type_name() const override { return "function"; }
  bool callable() const override { return true; }
  absl::StatusOr<Value> Call(Runtime& runtime, Arguments arguments) override {
    return function_(runtime, std::move(arguments));
  }

 private:
  const Builtin function_;
};

// cycler(a, b, ...): next() returns them in turn.
class Cycler : public Object {
 public:
  Cycler(HeapCharge charge, Value items) : Object(std::move(charge)), items_(std::move(items)) {}
  absl::string_view type_name() const override { return "Cycler"; }
  int depth() const override { return items_.depth() + 1; }
  absl::StatusOr<Value> Attribute(Runtime& runtime, absl::string_view name) override;

 private:
  friend class CyclerMethod;
  const Value items_;
  size_t position_ = 0;
};

class CyclerMethod : public Object {
 public:
  CyclerMethod(HeapCharge charge, Cycler* cycler, bool advance)
      : Object(std::move(charge)), cycler_(cycler), advance_(advance) {}
  absl::string_view type_name() const override { return "method"; }
  bool callable() const override { return true; }
  absl::StatusOr<Value> Call(Runtime&, Arguments) override {
    const auto& items = cycler_->items_.sequence().items;
    if (!advance_) {
      cycler_->position_ = 0;
      return Value::None();
    }
    const size_t at = cycler_->position_;
    cycler_->position_ = (at + 1) % items.size();
    return items[at];
  }

 private:
  Cycler* const cycler_;  // adopted by the runtime
  const bool advance_;
};

// joiner(separator): empty at the first call, the separator afterwards.
class Joiner : public Object {
 public:
  Joiner(HeapCharge charge, Value separator)
      : Object(std::move(charge)), separator_(std::move(separator)) {}
  absl::string_view type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
  int depth() const override { return separator_.depth() + 1; }
  absl::StatusOr<Value> Call(Runtime& runtime, Arguments) override {
    if (used_) return separator_;
    used_ = true;
    return runtime.MakeString("");
  }

 private:
  const Value separator_;
  bool used_ = false;
};

template <class T, class... Args>
absl::StatusOr<Value> MakeAdopted(Runtime& runtime, Args... args) {
  BATON_RETURN_IF_ERROR(runtime.CheckRoom(sizeof(T)));
  return runtime.Adopt(std::make_unique<T>(runtime.Charge(sizeof(T)), std::move(args)...));
}

absl::StatusOr<Value> Cycler::Attribute(Runtime& runtime, absl::string_view name) {
  if (name == "current") return items_.sequence().items[position_];
  if (name == "next" || name == "reset") {
    return MakeAdopted<CyclerMethod>(runtime, this, name == "next");
  }
  return Value();
}

absl::StatusOr<Value> CyclerFunction(Runtime& runtime, Arguments arguments) {
  if (arguments.positional.empty() || !arguments.named.empty()) {
    return Failure("cycler: expected at least one item");
  }
  BATON_ASSIGN_OR_RETURN(Value items, runtime.MakeList(std::move(arguments.positional)));
  return MakeAdopted<Cycler>(runtime, std::move(items));
}

absl::StatusOr<Value> JoinerFunction(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(auto args, BindArguments("joiner", std::move(arguments), {"sep"}, 0));
  if (args[0].is_missing()) {
    BATON_ASSIGN_OR_RETURN(args[0], runtime.MakeString(", "));
  }
  return MakeAdopted<Joiner>(runtime, args[0]);
}

absl::StatusOr<Value> RangeFunction(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(
      const auto args, BindArguments("range", std::move(arguments), {"start", "stop", "step"}, 1));
  BATON_ASSIGN_OR_RETURN(const int64_t first, IntArgument(args[0], "range", 0));
  BATON_ASSIGN_OR_RETURN(const int64_t second, IntArgument(args[1], "range", 0));
  BATON_ASSIGN_OR_RETURN(const int64_t step, IntArgument(args[2], "range", 1));
  const int64_t start = args[1].is_missing() ? 0 : first;
  const int64_t stop = args[1].is_missing() ? first : second;
  if (step == 0) return Failure("range() arg 3 must not be zero");
  std::vector<Value> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(items.size()) == kMaxRange) {
      return Failure(absl::StrCat("Range too big. The maximum size for a range is ", kMaxRange));
    }
    items.push_back(Value::Int(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return runtime.MakeSequence(Flavor::kRange, std::move(items));
}

absl::StatusOr<Value> DictFunction(Runtime& runtime, Arguments arguments) {
  if (arguments.positional.size() > 1) return Failure("dict expected at most 1 argument");
  DictRep::Entries entries;
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.is_dict()) {
      entries = source.dict().entries;
    } else {
      BATON_ASSIGN_OR_RETURN(const auto pairs, ItemsOf(runtime, source));
      for (const Value& pair : pairs) {
        BATON_ASSIGN_OR_RETURN(const auto parts, ItemsOf(runtime, pair));
        if (parts.size() != 2) return Failure("dict: expected pairs of key and value");
        entries.emplace_back(parts[0], parts[1]);
      }
    }
  }
  for (auto& [name, value] : arguments.named) {
    // The name may be a key of the request's dict that is passed with **.
    BATON_ASSIGN_OR_RETURN(Value key, runtime.MakeString(TracedText(name, Origin::kRequest)));
    entries.emplace_back(std::move(key), std::move(value));
  }
  return runtime.MakeDict(std::move(entries));
}

absl::StatusOr<Value> NamespaceFunction(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const Value dict, DictFunction(runtime, std::move(arguments)));
  std::vector<std::pair<std::string, Value>> attributes;
  size_t bytes = sizeof(Namespace);
  for (const auto& [key, value] : dict.dict().entries) {
    if (!key.is_string()) continue;
    bytes += sizeof(attributes[0]) + key.text().size();
    BATON_RETURN_IF_ERROR(runtime.CheckRoom(bytes));
    attributes.emplace_back(key.text(), value);
  }
  BATON_RETURN_IF_ERROR(runtime.CheckRoom(bytes));
  return runtime.Adopt(std::make_unique<Namespace>(runtime.Charge(bytes), std::move(attributes)));
}

absl::StatusOr<Value> RaiseFunction(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args,
                         BindArguments("raise_exception", std::move(arguments), {"message"}, 1));
  BATON_ASSIGN_OR_RETURN(const TracedText message, StrOf(runtime, args[0]));
  return MakeError(absl::StatusCode::kInvalidArgument, "CHAT_TEMPLATE_REFUSED",
                   ClipToUtf8(message.text, kMaxRefusalBytes));
}

absl::StatusOr<Value> TimeFunction(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args,
                         BindArguments("strftime_now", std::move(arguments), {"format"}, 1));
  BATON_ASSIGN_OR_RETURN(const absl::string_view format, TextArgument(args[0], "strftime_now"));
  if (format.size() > kMaxTimeFormatBytes) return Failure("strftime_now: the format is too long");
  return runtime.MakeString(TracedText(absl::FormatTime(format, runtime.now(), absl::UTCTimeZone()),
                                       args[0].traced().origin()));
}

}  // namespace

absl::StatusOr<Value> Namespace::Attribute(Runtime& runtime, absl::string_view name) {
  BATON_RETURN_IF_ERROR(runtime.Step(1 + attributes_.size() / 8));
  for (const auto& [key, value] : attributes_) {
    if (key == name) return value;
  }
  return Value();
}

void Namespace::Set(absl::string_view name, Value value) {
  for (auto& [key, old] : attributes_) {
    if (key != name) continue;
    old = std::move(value);
    return;
  }
  attributes_.emplace_back(std::string(name), std::move(value));
}

absl::StatusOr<Value> FindGlobal(Runtime& runtime, absl::string_view name) {
  static const auto& functions = *new absl::flat_hash_map<absl::string_view, Builtin>{
      {"cycler", CyclerFunction},         {"dict", DictFunction},
      {"joiner", JoinerFunction},         {"namespace", NamespaceFunction},
      {"raise_exception", RaiseFunction}, {"range", RangeFunction},
      {"strftime_now", TimeFunction},
  };
  const auto found = functions.find(name);
  if (found == functions.end()) return Value();
  return MakeAdopted<FunctionObject>(runtime, found->second);
}

}  // namespace baton::chat
