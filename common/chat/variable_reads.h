// Which variables a template takes from those that it is given.
#ifndef BATON_COMMON_CHAT_VARIABLE_READS_H_
#define BATON_COMMON_CHAT_VARIABLE_READS_H_

#include <vector>

#include "common/chat/syntax.h"

namespace baton::chat {

// By the id of the name. False for a name that the template only sets, or has set wherever it reads
// it: by set, as the target of a loop, as a macro or its parameter. What a branch of an if sets
// counts as set behind it if every branch sets it. In a macro's body a name counts as set if it is
// so where the macro is defined.
std::vector<bool> VariableReads(const TemplateSyntax& syntax);

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_VARIABLE_READS_H_
