// Fuzzes WorkerListener with the bytes of a local process: only expected workers cause requests.
#include <sys/socket.h>

#include "cli/elastic/worker_listener.h"
#include "system/socket.h"
#include "tests/fuzz/targets.h"

namespace fdl::fuzz {
namespace {

constexpr std::size_t kPieceBytes = 64;

bool run(ConstBytes input) {
  static const auto listener = std::move(*WorkerListener::open());
  static bool expects = (listener->expect(0), listener->expect(7), true);
  (void)expects;
  const Address address{std::string(listener->address())};
  const auto connection = connect_any({&address, 1}, Deadline::after_seconds(5));
  FDL_CHECK(connection.ok());
  listener->serve();
  for (std::size_t at = 0; at < input.size(); at += kPieceBytes) {
    const ConstBytes piece = input.subspan(at, std::min(kPieceBytes, input.size() - at));
    if (!write_all(connection->get(), piece, Deadline::after_seconds(5)).ok()) break;  // refused: the connection ends
    listener->serve();
  }
  bool accepted = false;
  for (const WorkerListener::Request& request : listener->take_requests()) {
    FDL_CHECK(request.worker == 0 || request.worker == 7);
    listener->send_line(request.worker, "world 1 0 2 0 2 unix:@x");
    accepted = true;
  }
  ::shutdown(connection->get(), SHUT_RDWR);
  listener->serve();
  return accepted;
}

std::vector<std::string> seeds() { return {"join 0 -1\n", "join 7 3\njoin 7 -1\n", "join 0 2147483647\n"}; }

}  // namespace

const Target worker_lines{"worker_lines", run, seeds, 3'000};

}  // namespace fdl::fuzz
