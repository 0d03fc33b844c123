// Values of a template while it renders: what Python's None, bool, int, float, str, list, tuple,
// dict and a few objects are to jinja2. Integers have 64 bits; an operation beyond them is an
// error. Larger ones in variables keep their digits, and are floats to what computes with them.
//
// A Value is cheap to copy: it shares an immutable representation. Not thread-safe, except that
// constants of a parsed template (values without a charge) may be shared between threads.
#ifndef BATON_COMMON_CHAT_VALUE_H_
#define BATON_COMMON_CHAT_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/chat/traced_text.h"

namespace baton::chat {

class Runtime;
class Value;

// The bytes that the values of one rendering hold at present.
struct Heap {
  size_t live_bytes = 0;
};

// A part of the heap, returned on destruction.
class HeapCharge {
 public:
  HeapCharge() = default;
  HeapCharge(Heap* heap, size_t bytes) : heap_(heap), bytes_(bytes) { heap->live_bytes += bytes; }
  HeapCharge(HeapCharge&& other) noexcept : heap_(other.heap_), bytes_(other.bytes_) {
    other.heap_ = nullptr;
  }
  HeapCharge& operator=(HeapCharge&&) = delete;
  ~HeapCharge() {
    if (heap_ != nullptr) heap_->live_bytes -= bytes_;
  }

 private:
  Heap* heap_ = nullptr;
  size_t bytes_ = 0;
};

struct Representation {
  explicit Representation(HeapCharge c) : charge(std::move(c)) {}
  virtual ~Representation() = default;
  HeapCharge charge;
};

enum class Kind : uint8_t {
  kMissing,  // an argument that the caller left out; never visible to a template
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kSequence,
  kDict,
  kObject,
};

// What a sequence is in Python. A generator can be read once; a dict's view has a length and no
// index.
enum class Flavor : uint8_t {
  kList,
  kTuple,
  kRange,
  kKeysView,
  kValuesView,
  kItemsView,
  kGenerator,
};

struct StringRep;
struct SequenceRep;
struct DictRep;
class Object;

class Value {
 public:
  Value() = default;  // kMissing
  static Value None() { return Value(Kind::kNone); }
  static Value Bool(bool b);
  static Value Int(int64_t i);
  static Value Float(double d);
  // A whole number that no int64 holds: computed with as a double, printed with its `digits`, a
  // string.
  static Value Whole(double d, const Value& digits);
  // A constant of a template, which is in no heap. REQUIRES: `text` is UTF-8.
  static Value Constant(std::string text);
  Value(Kind kind, std::shared_ptr<const Representation> rep) : kind_(kind), rep_(std::move(rep)) {}

  Kind kind() const { return kind_; }
  bool is_missing() const { return kind_ == Kind::kMissing; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  bool is_int() const { return kind_ == Kind::kInt; }
  bool is_float() const { return kind_ == Kind::kFloat; }
  bool is_integral() const { return is_int() || is_bool(); }
  bool is_number() const { return is_integral() || is_float(); }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_sequence() const { return kind_ == Kind::kSequence; }
  bool is_dict() const { return kind_ == Kind::kDict; }
  bool is_object() const { return kind_ == Kind::kObject; }

  bool boolean() const { return integer_ != 0; }
  int64_t integer() const { return integer_; }  // of an int or a bool
  double number() const { return is_float() ? real_ : static_cast<double>(integer_); }

  // REQUIRES: the kind (for the text, kUndefined too: what is undefined).
  const std::string& text() const { return traced().text; }
  const TracedText& traced() const;
  const StringRep& string() const;
  const SequenceRep& sequence() const;
  const DictRep& dict() const;
  Object& object() const;
  const void* identity() const { return rep_.get(); }

  // Returns the digits of a number that Whole has made, and null for all other values.
  const std::string* digits() const;

  bool IsSequence(Flavor flavor) const;
  bool is_markup() const;

  // How deep containers nest in it; 0 for a scalar.
  int depth() const;
  // What Python calls its type in messages: "str", "dict", …
  absl::string_view type_name() const;

 private:
  explicit Value(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::kMissing;
  union {
    int64_t integer_ = 0;
    double real_;
  };
  std::shared_ptr<const Representation> rep_;
};

struct StringRep : Representation {
  StringRep(HeapCharge c, TracedText t, bool m);
  const TracedText traced;
  const bool ascii;
  const bool markup;  // the filter safe made it: adding to it escapes HTML, as in markupsafe
};

struct SequenceRep : Representation {
  SequenceRep(HeapCharge c, Flavor f, std::vector<Value> i);
  const Flavor flavor;
  const std::vector<Value> items;
  const int depth;
  mutable size_t position = 0;  // of a generator: the items before it were read
};

struct DictRep : Representation {
  using Entries = std::vector<std::pair<Value, Value>>;
  // The first of equal keys keeps its place, the last its value. REQUIRES: keys IsHashable.
  DictRep(HeapCharge c, Entries e);
  const Value* Find(const Value& key) const;
  const Value* Find(absl::string_view key) const;

  Entries entries;  // in order of insertion
  int depth = 1;

 private:
  Value* FindOther(const Value& key);
  absl::flat_hash_map<absl::string_view, size_t> by_text_;  // of keys that are strings
};

// A value with behaviour: a macro, a namespace, a loop, a bound method, a function.
class Object : public Representation {
 public:
  using Representation::Representation;
  virtual absl::string_view type_name() const = 0;
  virtual bool callable() const { return false; }
  virtual int depth() const { return 1; }
  // kMissing if there is no such attribute.
  virtual absl::StatusOr<Value> Attribute(Runtime& runtime, absl::string_view name);
  virtual absl::StatusOr<Value> Call(Runtime& runtime, struct Arguments arguments);
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// False for lists and dicts, also inside tuples: they are no keys of a dict.
bool IsHashable(const Value& value);
bool IsTrue(const Value& value);
// Equality of what can be a key; false for other kinds. Bounded by the depth of tuples.
bool KeysEqual(const Value& a, const Value& b);

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_VALUE_H_
