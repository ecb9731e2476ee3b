// RankState describes what one rank does at a moment, for users who look for the cause of a hang.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace fdl {

struct RankState {
  // The limits of a state. Longer lists and texts are cut when a state is sent.
  static constexpr std::size_t kMostWaits = 32;
  static constexpr std::size_t kMostRanks = 64;
  static constexpr std::size_t kMostText = 256;
  static constexpr std::size_t kMostStacks = 16384;

  // An operation that has not ended, or a name that ranks have not agreed on.
  struct Wait {
    std::string group;
    std::string operation;  // "allreduce", "allreduce 'grad'"
    std::string phase;      // "allreduce by shared memory"; empty for a name
    // The world ranks that it waits for, as far as they are known: for a name, those that have not submitted it.
    std::vector<int> ranks{};
    int64_t waited_ns = -1;  // since nothing has moved, or since the first rank submitted the name; -1: unknown
  };

  // How far the agreement of a group is on this rank.
  struct Agreement {
    std::string group;
    std::string text;
  };

  std::vector<Wait> operations{};
  std::vector<Wait> names{};            // only on the root of a group, which decides when all ranks are ready
  uint64_t begun_ordered = 0;           // collectives of ordered communicators
  uint64_t begun_named = 0;             // operations that were submitted by name
  uint64_t left_out = 0;                // operations and names that are not in the lists
  std::vector<Agreement> agreements{};  // of the groups in which operations were submitted
  // Of the rank's threads, where the user asks for them: lines of text. Empty: the program gives none.
  std::string stacks{};

  // Beyond the limit they are only counted.
  void add_operation(Wait wait) { add(operations, std::move(wait)); }
  void add_name(Wait wait) { add(names, std::move(wait)); }
  void add_agreement(std::string group, std::string text) {
    if (agreements.size() < kMostWaits) agreements.push_back({std::move(group), std::move(text)});
  }

 private:
  void add(std::vector<Wait>& waits, Wait wait) {
    if (waits.size() == kMostWaits) {
      ++left_out;
    } else {
      waits.push_back(std::move(wait));
    }
  }
};

// What the coordinator knows about a rank that a user asks for.
enum class RankPresence : uint8_t {
  answered,  // its state is known
  silent,    // its process is connected and has not answered in time
  absent,    // it has not arrived yet
  left,      // in good order
  lost,
};
inline constexpr int kRankPresences = 5;

}  // namespace fdl
