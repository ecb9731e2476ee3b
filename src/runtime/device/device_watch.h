// DeviceWatch: an ordered communicator's work on devices that stands still: since when, and which rank it waits for.
//
// The others are asked how far they are, a few times in as long as a stall may last before it is reported. A rank is
// late that has called less than this one, has nothing on its device that has not run, and has not moved between two
// answers. Pure: whoever looks brings the facts and the time, and carries out what is wished.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "contract/membership.h"
#include "engine/communicator.h"

namespace fdl {

class DeviceWatch {
 public:
  struct Terms {
    int64_t warning_ns = 0;   // 0: never
    int64_t shutdown_ns = 0;  // 0: never
  };
  struct Answer {
    int64_t begun = -1;    // -1: the communicator is unknown there
    bool waiting = false;  // something there has not run
    bool operator==(const Answer&) const = default;
  };
  struct Wish {
    uint64_t question = 0;  // not 0: the others are to be asked
    std::string warning;
    Status failure;  // the communicator is to end with it on all ranks; where both are due, it is warned of first
  };
  using NameOf = std::function<std::string(uint64_t number)>;

  DeviceWatch(std::string id, std::vector<Member> members, int rank, const Terms& terms);

  Wish look(const Communicator::DeviceWork& work, const NameOf& name_of, int64_t now_ns);
  void told(int world_rank, uint64_t question, Answer answer);

  const std::string& id() const { return id_; }
  // How long the others need not ask when this one has.
  int64_t claim_ns() const { return 2 * timeout_ns_; }

 private:
  void begin_again(const Communicator::DeviceWork& work, int64_t now_ns);
  void compare_answers();
  std::vector<std::size_t> late() const;
  Status failure(const NameOf& name_of, int64_t now_ns) const;
  std::string tell(const NameOf& name_of, int64_t now_ns) const;

  const std::string id_;
  const std::vector<Member> members_;
  const std::size_t me_;
  const Terms terms_;
  const int64_t timeout_ns_;  // between two questions

  // What stands still, and since when.
  bool stands_still_ = false;
  Communicator::DeviceWork work_;
  int64_t since_ns_ = 0;
  int64_t next_question_ns_ = 0;
  int64_t next_warning_ns_ = 0;

  // By member: what was answered to the question, and to the one before.
  uint64_t question_ = 0;
  std::vector<std::optional<Answer>> answers_;
  std::vector<std::optional<Answer>> before_;
  bool confirmed_ = false;  // they are complete, and the same
};

}  // namespace fdl
