// A fuzz target runs one parser of bytes from the network, a file or the environment. The same targets run in two ways:
// fuzz_test mutates their seeds in a fixed order, and libFuzzer searches for inputs (tests/fuzz/run.sh).
//
// A target checks what must hold for every input with FDL_CHECK, which aborts. A sanitizer detects the rest.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"

namespace fdl::fuzz {

struct Target {
  const char* name;
  bool (*run)(ConstBytes input);        // whether the parser accepted the input
  std::vector<std::string> (*seeds)();  // accepted inputs, from which mutations start
  int rounds = 20'000;                  // mutations of fuzz_test; fewer where an input costs system calls
};

extern const Target requests;             // agree: a rank's control message
extern const Target relayed;              // agree: what a rank relays of others
extern const Target plans;                // agree: a root's control message
extern const Target sessions;             // agree: both ends of an agreement that receive damaged messages
extern const Target coordinator_message;  // bootstrap: the payload of a frame
extern const Target coordinator_frames;   // bootstrap: frames, their lengths and seals
extern const Target membership;           // bootstrap: any sequence of messages to the coordinator
extern const Target handshake;            // system: bytes of a stranger, and a changed handshake
extern const Target rendezvous;           // bootstrap: the text of a rendezvous, from a variable or a file
extern const Target slurm_lists;          // bootstrap: Slurm's lists of hosts and counts
extern const Target json;                 // bootstrap: JSON of a launcher
extern const Target launchers;            // bootstrap: variables and files of all launchers
extern const Target host_files;           // bootstrap: /etc/hosts and a hostfile
extern const Target topology_file;        // bootstrap: hosts and their locations in the network
extern const Target config;               // base: the library's variables
extern const Target tuning_table;         // algorithms: a tuning file
extern const Target tcp_stream;           // tcp: slices and their headers
extern const Target worker_lines;         // cli: lines of elastic workers
extern const Target history;              // runtime, cli: a rank's history of operations, and the report on it
extern const Target timeline;             // runtime: the written timeline remains valid JSON for any tensor name

// Reads an input as numbers and strings; an input that is too short gives zeros and empty strings.
class Input {
 public:
  explicit Input(ConstBytes bytes) : bytes_(text_of(bytes)) {}

  bool empty() const { return at_ >= bytes_.size(); }
  unsigned number() { return empty() ? 0 : static_cast<unsigned char>(bytes_[at_++]); }
  unsigned wide() {
    const unsigned low = number();
    return low | number() << 8;
  }
  std::string_view take(std::size_t bytes) {
    const std::string_view taken = rest().substr(0, bytes);
    at_ += taken.size();
    return taken;
  }
  // A string with its length in two bytes before it.
  std::string_view text() { return take(wide()); }
  std::string_view rest() const { return empty() ? std::string_view() : bytes_.substr(at_); }

 private:
  std::string_view bytes_;
  std::size_t at_ = 0;
};

// The bytes that Input::text() reads.
inline std::string with_length(std::string_view text) {
  std::string bytes{static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)};
  return bytes.append(text);
}

}  // namespace fdl::fuzz
