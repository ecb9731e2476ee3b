// Recognizes the library's error sentences in the last lines of a rank and maps them to exit codes.
#include "cli/run/consequence.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "cli/subcommands.h"

namespace fdl {
namespace {

struct Row {
  std::string_view beginning;  // of the sentence, anywhere in a line
  std::string_view end;        // follows the beginning in the same line
  int exit_code;
  const char* text;
};

// The sentences are written in bootstrap/; a change there needs a change here.
constexpr Row kRows[] = {
    {"rank ", " was lost: ", kExitPeerLost, "another rank was lost"},
    {"rank ", " ended before it had joined the job: ", kExitPeerLost, "another rank had ended before it joined"},
    {"the coordinator (", ") is gone", kExitPeerLost, "the coordinator went away"},
    {"the coordinator at ", " has ended: ", kExitPeerLost, "the coordinator went away"},
    {"rank", " not arrived after ", kExitRendezvous, "others did not arrive in time"},
    {"", " did not find the coordinator at ", kExitRendezvous, "the coordinator was not found in time"},
};

}  // namespace

int rank_that_left(const std::deque<std::string>& last_lines) {
  constexpr std::string_view kBeginning = "rank ";
  for (const std::string& line : last_lines) {
    const auto end = line.find(" has shut down");
    const auto begin = end == std::string::npos ? end : line.rfind(kBeginning, end);
    if (begin == std::string::npos) continue;
    const char* const digits = line.data() + begin + kBeginning.size();
    int rank = -1;
    if (std::from_chars(digits, line.data() + end, rank).ec == std::errc()) return rank;
  }
  return -1;
}

Consequence consequence_of(const std::deque<std::string>& last_lines) {
  for (const Row& row : kRows) {
    const bool is_found = std::any_of(last_lines.begin(), last_lines.end(), [&](const std::string& line) {
      const auto end = line.find(row.end);
      return end != std::string::npos && line.find(row.beginning) <= end;
    });
    if (is_found) return {row.exit_code, row.text};
  }
  return {};
}

}  // namespace fdl
