// The work of computing prompts, in the two amounts that its cost is linear in. Workers fit the
// cost of their steps to them, routers price prompts by them.
#ifndef BATON_COMMON_BASE_PREFILL_WORK_H_
#define BATON_COMMON_BASE_PREFILL_WORK_H_

namespace baton {

struct PrefillWork {
  double tokens = 0;  // to compute
  double pairs = 0;   // of a computed token and a token that it attends to

  void Add(double new_tokens, double context_tokens) {
    tokens += new_tokens;
    pairs += new_tokens * (context_tokens + new_tokens / 2);
  }
};

}  // namespace baton

#endif  // BATON_COMMON_BASE_PREFILL_WORK_H_
