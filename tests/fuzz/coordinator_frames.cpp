// Fuzzes FrameOpener with frames that arrive in any pieces: sealed ones are opened, and changed ones are refused.
//
// The first byte of an input chooses a direction, and whether the rest is raw bytes or payloads to seal. Each payload
// has its length before it; the second byte is the size of the pieces.
#include "bootstrap/coordinator/coordinator_wire.h"
#include "tests/fuzz/coordinator_messages.h"
#include "tests/fuzz/targets.h"

namespace fdl::fuzz {
namespace {

const std::string kKey(32, 'k');

// Feeds the bytes in pieces. Returns the payloads, and sets `failed` if the opener refused.
std::vector<std::string> opened(Direction direction, std::string_view bytes, std::size_t piece, bool& failed) {
  FrameOpener opener(kKey, direction);
  std::vector<std::string> payloads;
  failed = false;
  for (std::size_t at = 0; at < bytes.size() && !failed; at += piece) {
    opener.feed(bytes.substr(at, piece));
    while (true) {
      const auto payload = opener.next();
      failed = !payload.ok();
      if (failed || !*payload) break;
      payloads.emplace_back(**payload);
    }
  }
  return payloads;
}

bool run(ConstBytes bytes) {
  Input input(bytes);
  const unsigned choice = input.number();
  const Direction direction = choice & 1 ? Direction::to_coordinator : Direction::from_coordinator;
  const std::size_t piece = 1 + input.number() * 16;
  bool failed = false;
  if (choice & 2) {
    opened(direction, input.rest(), piece, failed);
    return !failed;
  }
  FrameSealer sealer(kKey, direction);
  std::vector<std::string> payloads;
  std::string stream;
  while (!input.empty()) stream += sealer.seal(payloads.emplace_back(input.text()));
  FDL_CHECK(opened(direction, stream, piece, failed) == payloads && !failed);
  if (stream.empty()) return true;
  // One changed bit ends the stream, or leaves its last frame incomplete.
  const std::size_t at = choice * 131 % stream.size();
  stream[at] = static_cast<char>(stream[at] ^ (1 << choice % 8));
  const auto remaining = opened(direction, stream, piece, failed);
  FDL_CHECK(remaining.size() < payloads.size());
  for (std::size_t i = 0; i < remaining.size(); ++i) FDL_CHECK(remaining[i] == payloads[i]);
  return true;
}

std::vector<std::string> seeds() {
  std::string payloads;
  for (const CoordinatorMessage& message : some_messages()) payloads += with_length(encode(message));
  FrameSealer sealer(kKey, Direction::to_coordinator);
  return {std::string("\x01\x00", 2) + payloads, std::string("\x04\x07", 2) + payloads,
          std::string("\x03\x02", 2) + sealer.seal("one") + sealer.seal("")};
}

}  // namespace

const Target coordinator_frames{"coordinator_frames", run, seeds, 4'000};

}  // namespace fdl::fuzz
