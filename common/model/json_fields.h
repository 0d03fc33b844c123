// Typed, range-checked reading of one JSON object of an untrusted file.
#ifndef BATON_COMMON_MODEL_JSON_FIELDS_H_
#define BATON_COMMON_MODEL_JSON_FIELDS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/json/json.h"

namespace baton::model {

// Errors are INVALID_ARGUMENT: "FILE: FIELD: found X, expected Y". A null counts as absent, as in
// Transformers. The ::baton::json::Value must outlive it. It knows which keys were asked for, so
// that a reader can refuse what it did not read; copies share that. Unsynchronized.
class JsonFields {
 public:
  // INVALID_ARGUMENT if `value` is no object.
  static absl::StatusOr<JsonFields> Make(const ::baton::json::Value& value, std::string file);

  bool Has(absl::string_view key) const;     // there, and not null
  bool IsNull(absl::string_view key) const;  // there, and null
  bool HasObject(absl::string_view key) const;
  bool HasText(absl::string_view key) const;

  absl::StatusOr<int> Int(absl::string_view key, int lowest, int highest) const;
  absl::StatusOr<std::optional<int>> OptionalInt(absl::string_view key, int lowest,
                                                 int highest) const;
  absl::StatusOr<int> IntOr(absl::string_view key, int lowest, int highest, int if_absent) const;
  absl::StatusOr<double> Real(absl::string_view key, double lowest, double highest) const;
  absl::StatusOr<std::optional<double>> OptionalReal(absl::string_view key, double lowest,
                                                     double highest) const;
  absl::StatusOr<double> RealOr(absl::string_view key, double lowest, double highest,
                                double if_absent) const;
  absl::StatusOr<bool> Bool(absl::string_view key, bool if_absent) const;
  absl::StatusOr<std::optional<std::string>> OptionalString(absl::string_view key) const;
  absl::StatusOr<std::optional<JsonFields>> OptionalObject(absl::string_view key) const;
  // Empty if absent.
  absl::StatusOr<std::vector<std::string>> Strings(absl::string_view key) const;
  // An integer or a list of them; empty if absent.
  absl::StatusOr<std::vector<int>> Ints(absl::string_view key, int lowest, int highest) const;
  // Empty if absent.
  absl::StatusOr<std::vector<double>> Reals(absl::string_view key, double lowest,
                                            double highest) const;

  // Marks the key as read: it changes nothing here.
  void Ignore(absl::string_view key) const { asked_for_->insert(std::string(key)); }
  // The keys in file order that no method was asked for and that are not off: a null, false, 0, an
  // empty text, list or object.
  std::vector<std::string> Unread() const;
  // The value as a number; nullopt if it is none.
  std::optional<double> NumberOf(absl::string_view key) const;
  // "8", "\"x\"", "a list", "nothing": the value in a message.
  std::string Found(absl::string_view key) const;

  // "FILE: FIELD: message", for the caller's own errors.
  std::string Message(absl::string_view key, absl::string_view message) const;
  absl::Status Invalid(absl::string_view key, absl::string_view message) const;
  absl::Status Unsupported(absl::string_view key, absl::string_view message) const;
  const std::string& file() const { return file_; }

 private:
  JsonFields(const ::baton::json::Value& object, std::string file, std::string prefix)
      : object_(&object),
        file_(std::move(file)),
        prefix_(std::move(prefix)),
        asked_for_(std::make_shared<absl::flat_hash_set<std::string>>()) {}
  const ::baton::json::Value* Find(absl::string_view key) const;  // null if absent or a JSON null
  absl::Status Mismatch(absl::string_view key, const ::baton::json::Value* found,
                        absl::string_view expected) const;
  absl::StatusOr<double> ToReal(absl::string_view key, const ::baton::json::Value* value,
                                double lowest, double highest) const;
  absl::StatusOr<int> ToInt(absl::string_view key, const ::baton::json::Value* value, int lowest,
                            int highest) const;

  const ::baton::json::Value* object_;
  std::string file_;
  std::string prefix_;  // "rope_scaling." for the fields of a nested object
  std::shared_ptr<absl::flat_hash_set<std::string>> asked_for_;
};

// JSON with Infinity as a number, which Python writes, in Transformers 5's words for it, which
// JsonFields reads: {"__float__": "Infinity"}.
std::string SpellInfinities(absl::string_view text);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_JSON_FIELDS_H_
