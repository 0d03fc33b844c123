#include "cli/bench/words.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace baton::cli {
namespace {

constexpr absl::string_view kCommonWords[] = {
    "the",      "of",      "and",     "to",      "in",       "is",         "that",      "for",
    "it",       "as",      "was",     "with",    "be",       "by",         "on",        "not",
    "he",       "his",     "but",     "at",      "are",      "this",       "have",      "from",
    "or",       "had",     "an",      "they",    "which",    "one",        "you",       "were",
    "her",      "all",     "she",     "there",   "would",    "their",      "we",        "him",
    "been",     "has",     "when",    "who",     "will",     "more",       "no",        "if",
    "out",      "so",      "said",    "what",    "up",       "its",        "about",     "into",
    "than",     "them",    "can",     "only",    "other",    "new",        "some",      "could",
    "time",     "these",   "two",     "may",     "then",     "do",         "first",     "any",
    "my",       "now",     "such",    "like",    "our",      "over",       "man",       "me",
    "even",     "most",    "made",    "after",   "also",     "did",        "many",      "before",
    "must",     "through", "back",    "years",   "where",    "much",       "your",      "way",
    "well",     "down",    "should",  "because", "each",     "just",       "those",     "people",
    "how",      "too",     "little",  "state",   "good",     "very",       "make",      "world",
    "still",    "own",     "see",     "men",     "work",     "long",       "get",       "here",
    "between",  "both",    "life",    "being",   "under",    "never",      "day",       "same",
    "another",  "know",    "while",   "last",    "might",    "us",         "great",     "old",
    "year",     "off",     "come",    "since",   "against",  "go",         "came",      "right",
    "used",     "take",    "three",   "states",  "himself",  "few",        "house",     "use",
    "during",   "without", "again",   "place",   "american", "around",     "however",   "home",
    "small",    "found",   "thought", "went",    "say",      "part",       "once",      "general",
    "high",     "upon",    "school",  "every",   "does",     "got",        "united",    "left",
    "number",   "course",  "war",     "until",   "always",   "away",       "something", "fact",
    "water",    "though",  "less",    "public",  "put",      "think",      "almost",    "hand",
    "enough",   "far",     "took",    "head",    "yet",      "government", "system",    "set",
    "better",   "told",    "nothing", "night",   "end",      "why",        "called",    "find",
    "going",    "look",    "asked",   "later",   "point",    "knew",       "next",      "city",
    "business", "give",    "group",   "toward",  "young",    "days",       "let",       "room",
    "within",   "side",    "social",  "line",    "large",    "light",      "form",      "thing",
    "body",     "study",   "book",    "best",    "whole",    "field",      "level",     "order",
    "person",   "women",   "problem", "morning", "change",   "car",        "live",      "play",
    "music",    "early",   "air",     "least",   "money",    "behind",     "real",      "power",
};

}  // namespace

absl::Span<const absl::string_view> CommonWords() { return kCommonWords; }

void SpellPrompts(std::vector<BenchPrompt>* prompts) {
  for (BenchPrompt& prompt : *prompts) {
    prompt.text = absl::StrJoin(prompt.token_ids, " ", [](std::string* text, int32_t id) {
      absl::StrAppend(text, kCommonWords[id]);
    });
  }
}

}  // namespace baton::cli
