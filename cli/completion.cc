#include "cli/completion.h"

#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"

namespace baton::cli {
namespace {

struct Flag {
  std::vector<std::string> names;  // "--model", "-n"; none for a positional argument
  std::string description;
  bool takes_value = false;
  bool repeatable = false;
  bool directory = false;            // the value is one
  bool path = false;                 // of a file or a directory
  std::vector<std::string> choices;  // the values that there are; empty: any
};

struct Command {
  std::string name;   // "up"; "serve", whose group is "bench"
  std::string group;  // empty: of the top
  std::string description;
  std::vector<Flag> flags;
  std::vector<std::string> subcommands;

  // Unique, in the scripts.
  std::string key() const { return group.empty() ? name : absl::StrCat(group, "_", name); }
};

// CLI11 has the set of a value only as text, as in "TEXT:{low,high}" and "{low->1,high->3}".
std::vector<std::string> ChoicesOf(const std::string& type_name) {
  const size_t open = type_name.find('{');
  const size_t close = type_name.find('}', open);
  if (open == std::string::npos || close == std::string::npos) return {};
  std::vector<std::string> choices =
      absl::StrSplit(type_name.substr(open + 1, close - open - 1), ',');
  for (std::string& choice : choices) choice = choice.substr(0, choice.find("->"));
  return choices;
}

Flag FlagOf(const CLI::Option& option) {
  Flag flag;
  for (const std::string& name : option.get_lnames()) flag.names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) flag.names.push_back("-" + name);
  flag.description = option.get_description();
  flag.takes_value = option.get_items_expected_max() > 0;
  flag.repeatable = option.get_items_expected_max() > 1;
  const std::string type_name = option.get_type_name();
  flag.directory = absl::StrContains(type_name, "DIR");
  flag.path = absl::StrContains(type_name, "PATH");
  flag.choices = ChoicesOf(type_name);
  return flag;
}

std::vector<const CLI::App*> SubcommandsOf(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

Command CommandOf(const CLI::App& app, const std::string& group) {
  Command command{app.get_name(), group, app.get_description(), {}, {}};
  for (const CLI::Option* option : app.get_options()) command.flags.push_back(FlagOf(*option));
  for (const CLI::App* subcommand : SubcommandsOf(app)) {
    command.subcommands.push_back(subcommand->get_name());
  }
  return command;
}

std::vector<std::string> FlagWordsOf(const Command& command) {
  std::vector<std::string> words;
  for (const Flag& flag : command.flags) {
    const std::vector<std::string>& more = flag.names.empty() ? flag.choices : flag.names;
    words.insert(words.end(), more.begin(), more.end());
  }
  return words;
}

std::vector<std::string> WordsOf(const Command& command) {
  std::vector<std::string> words = FlagWordsOf(command);
  words.insert(words.end(), command.subcommands.begin(), command.subcommands.end());
  return words;
}

// Cases for flags that take a value: what may stand behind them.
std::string BashValues(const Command& command) {
  std::string cases;
  std::vector<std::string> free;  // any value
  for (const Flag& flag : command.flags) {
    if (!flag.takes_value) continue;
    for (const std::string& name : flag.names) {
      const std::string pattern = absl::StrCat(command.key(), ",", name);
      if (flag.directory || flag.path) {
        absl::StrAppend(&cases, "    ", pattern, ") mapfile -t COMPREPLY < <(compgen -",
                        flag.path ? "f" : "d", " -- \"$current\"); return ;;\n");
      } else if (flag.choices.empty()) {
        free.push_back(pattern);
      } else {
        absl::StrAppend(&cases, "    ", pattern, ") _baton_offer ",
                        absl::StrJoin(flag.choices, " "), "; return ;;\n");
      }
    }
  }
  if (!free.empty()) absl::StrAppend(&cases, "    ", absl::StrJoin(free, "|"), ") return ;;\n");
  return cases;
}

// The commands that have subcommands, as alternatives of a pattern.
std::string GroupsOf(const std::vector<Command>& commands) {
  std::vector<std::string> groups;
  for (const Command& command : commands) {
    if (!command.subcommands.empty()) groups.push_back(command.name);
  }
  return absl::StrJoin(groups, "|");
}

std::string BashScript(const Command& top, const std::vector<Command>& commands) {
  std::string values, flags;
  for (const Command& command : commands) {
    absl::StrAppend(&values, BashValues(command));
    absl::StrAppend(&flags, "    ", command.key(), ") _baton_offer ",
                    absl::StrJoin(WordsOf(command), " "), " ;;\n");
  }
  // Without an offer, bash completes file names (-o default).
  return absl::StrCat(R"(# bash completion of baton: source <(baton completion bash)
_baton_offer() { mapfile -t COMPREPLY < <(compgen -W "$*" -- "$current"); }
_baton() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command=
  COMPREPLY=()
  if ((COMP_CWORD > 1)); then command=${COMP_WORDS[1]}; fi
  if [[ $command == @()",
                      GroupsOf(commands), R"() ]] && ((COMP_CWORD > 2)); then
    command+=_${COMP_WORDS[2]}
  fi
  case $command,$previous in
)",
                      values, "  esac\n  case $command in\n", flags, "    '') _baton_offer ",
                      absl::StrJoin(WordsOf(top), " "),
                      " ;;\n  esac\n}\ncomplete -o default -F _baton baton\n");
}

// 'text', with `escaped` characters behind a backslash.
std::string Quoted(const std::string& text, absl::string_view escaped, absl::string_view quote) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      absl::StrAppend(&quoted, quote);
      continue;
    }
    if (absl::StrContains(escaped, c)) quoted += '\\';
    quoted += c;
  }
  return quoted + "'";
}

std::string Zsh(const std::string& text) { return Quoted(text, "", "'\\''"); }
std::string Fish(const std::string& text) { return Quoted(text, "\\", "\\'"); }

// An argument of zsh's _arguments.
std::string ZshValue(const Flag& flag) {
  if (!flag.takes_value) return "";
  if (flag.names.empty() && flag.choices.empty()) return ":value: ";  // a prompt: nothing to offer
  if (flag.directory) return ":directory:_files -/";
  if (flag.choices.empty()) return ":value:_files";
  return absl::StrCat(":value:(", absl::StrJoin(flag.choices, " "), ")");
}

std::string ZshScript(const Command& top, const std::vector<Command>& commands) {
  std::string names, cases;
  for (const Command& command : commands) {
    if (command.group.empty()) {
      absl::StrAppend(&names, "    ", Zsh(absl::StrCat(command.name, ":", command.description)),
                      "\n");
    }
    absl::StrAppend(&cases, "    ", command.key(), ")\n      _arguments");
    if (!command.subcommands.empty()) {
      absl::StrAppend(
          &cases, " \\\n        ",
          Zsh(absl::StrCat(":command:(", absl::StrJoin(command.subcommands, " "), ")")));
    }
    for (const Flag& flag : command.flags) {
      if (flag.names.empty()) absl::StrAppend(&cases, " \\\n        ", Zsh(":" + ZshValue(flag)));
      const std::string description = absl::StrReplaceAll(
          flag.description, {{"\\", "\\\\"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
      for (const std::string& name : flag.names) {
        absl::StrAppend(&cases, " \\\n        ",
                        Zsh(absl::StrCat(flag.repeatable ? "*" : "", name, "[", description, "]",
                                         ZshValue(flag))));
      }
    }
    absl::StrAppend(&cases, " ;;\n");
  }
  return absl::StrCat(R"(#compdef baton
# zsh completion of baton: source <(baton completion zsh)
_baton() {
  local -a commands=(
)",
                      names, R"(  )
  if ((CURRENT == 2)); then
    _describe command commands
    compadd -- )",
                      absl::StrJoin(FlagWordsOf(top), " "), R"(
    return
  fi
  local command=$words[2]
  shift words
  ((CURRENT--))
  if [[ $command == ()",
                      GroupsOf(commands), R"() ]] && ((CURRENT > 2)); then
    command+=_$words[2]
    shift words
    ((CURRENT--))
  fi
  case $command in
)",
                      cases, R"(  esac
}
if [[ $funcstack[1] == _baton ]]; then _baton "$@"; else compdef _baton baton; fi
)");
}

std::string FishFlag(const std::string& condition, const Flag& flag) {
  std::string line = absl::StrCat("complete -c baton -n ", Fish(condition));
  for (const std::string& name : flag.names) {
    const bool is_long = absl::StartsWith(name, "--");
    absl::StrAppend(&line, is_long ? " -l " : " -s ", name.substr(is_long ? 2 : 1));
  }
  const std::string choices =
      flag.directory ? "(__fish_complete_directories)" : absl::StrJoin(flag.choices, " ");
  if (!choices.empty()) absl::StrAppend(&line, " -x -a ", Fish(choices));
  if (choices.empty() && flag.takes_value) absl::StrAppend(&line, " -r -F");
  return absl::StrCat(line, " -d ", Fish(flag.description), "\n");
}

std::string FishScript(const Command& top, const std::vector<Command>& commands) {
  std::string script =
      "# fish completion of baton: baton completion fish | source\ncomplete -c baton -f\n";
  for (const Flag& flag : top.flags) {
    absl::StrAppend(&script, FishFlag("__fish_use_subcommand", flag));
  }
  for (const Command& command : commands) {
    // Where the command's name may stand, and where its flags may.
    const std::string seen_group = "__fish_seen_subcommand_from " + command.group;
    const std::string at = command.group.empty() ? "__fish_use_subcommand" : seen_group;
    const std::string behind = absl::StrCat(command.group.empty() ? "" : seen_group + "; and ",
                                            "__fish_seen_subcommand_from ", command.name);
    absl::StrAppend(&script, "complete -c baton -n ", Fish(at), " -a ", command.name, " -d ",
                    Fish(command.description), "\n");
    for (const Flag& flag : command.flags) {
      if (flag.names.empty() && flag.choices.empty()) continue;  // a prompt: nothing to offer
      absl::StrAppend(&script, FishFlag(behind, flag));
    }
  }
  return script;
}

}  // namespace

std::string CompletionScript(const CLI::App& app, const std::string& shell) {
  const Command top = CommandOf(app, "");
  std::vector<Command> commands;
  for (const CLI::App* command : SubcommandsOf(app)) {
    commands.push_back(CommandOf(*command, ""));
    for (const CLI::App* nested : SubcommandsOf(*command)) {
      commands.push_back(CommandOf(*nested, command->get_name()));
    }
  }
  if (shell == "bash") return BashScript(top, commands);
  if (shell == "zsh") return ZshScript(top, commands);
  BATON_CHECK(shell == "fish") << shell;
  return FishScript(top, commands);
}

}  // namespace baton::cli
