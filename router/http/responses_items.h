// The items of a conversation in OpenAI's Responses API, as the messages of a chat.
#ifndef BATON_ROUTER_HTTP_RESPONSES_ITEMS_H_
#define BATON_ROUTER_HTTP_RESPONSES_ITEMS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/json/json.h"

namespace baton::router {

// Collects messages in the shape of Conversation::messages. What an assistant says in one turn is
// one message: its reasoning, then its text, then its calls. Unsynchronized.
class ChatMessages {
 public:
  void AddText(absl::string_view role, std::string text);
  // Belongs to the assistant's text or call that comes next; dropped if something else does.
  void AddReasoning(std::string text);
  void AddCall(std::string call_id, std::string name, std::string arguments);
  void AddCallOutput(std::string call_id, std::string text);

  size_t size() const { return messages_.items.size(); }
  // An array.
  json::Value Take() { return std::move(messages_); }

 private:
  json::Value& Add(absl::string_view role, json::Value content);
  json::Value& AddAssistant(json::Value content);

  json::Value messages_ = json::ArrayValue();
  std::string reasoning_;      // of the next message
  bool turn_is_open_ = false;  // the last message takes calls
};

// Appends the items of the field `name`: a text of the user's, or an array of messages, function
// calls, their outputs, and reasoning. INVALID_ARGUMENT, naming the item's field as the client
// does, for other items and for parts that are no text. Adds to `ignored` the names of members that
// have no effect, each once.
absl::Status ReadItems(absl::string_view name, const json::Value& value, ChatMessages& messages,
                       std::vector<std::string>& ignored);

// Adds a name that is not yet there.
void IgnoreOnce(absl::string_view name, std::vector<std::string>& ignored);

// The name by which the model knows a function of a namespace: the namespace, two underscores, and
// the function's name. "functions" is the namespace of what has none, so there it is the name
// alone.
std::string QualifiedName(absl::string_view name_space, absl::string_view name);

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_RESPONSES_ITEMS_H_
