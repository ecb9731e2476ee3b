// A refusal is one text. The highest bit of its length says whether the members go on.
#include "transports/shm/set_up/shm_decision.h"

#include <algorithm>

#include "system/socket.h"

namespace fdl {
namespace {

constexpr uint32_t kGoOnWithout = uint32_t{1} << 31;
constexpr std::size_t kMostText = 4096;
constexpr std::size_t kFdsAtOnce = 32;  // the kernel limits the number of descriptors in one message

}  // namespace

Status send_approval(int socket, Deadline deadline) {
  const uint32_t fine = 0;
  return write_all(socket, std::as_bytes(std::span(&fine, 1)), deadline);
}

void send_refusal(int socket, const Status& why, bool goes_on, Deadline deadline) {
  const std::string& text = why.text();
  const uint32_t length = static_cast<uint32_t>(text.size()) | (goes_on ? kGoOnWithout : 0);
  if (!write_all(socket, std::as_bytes(std::span(&length, 1)), deadline).ok()) return;
  (void)write_all(socket, bytes_of(text), deadline);
}

Status receive_decision(int socket, const std::string& leader, Deadline deadline) {
  uint32_t length = 0;
  const Status answered = read_all(socket, std::as_writable_bytes(std::span(&length, 1)), deadline);
  if (!answered.ok()) return answered.while_doing("waiting for the shared memory of " + leader);
  if (length == 0) return {};
  const Code code = (length & kGoOnWithout) != 0 ? Code::unsupported : Code::timeout;
  // The length comes from another process, so it is bounded.
  std::string text(std::min<std::size_t>(length & ~kGoOnWithout, kMostText), ' ');
  FDL_RETURN_IF_ERROR(read_all(socket, std::as_writable_bytes(std::span(text)), deadline));
  return Status(code, std::move(text));
}

Status send_fds_in_parts(int socket, std::span<const int> fds, Deadline deadline) {
  for (std::size_t first = 0; first < fds.size(); first += kFdsAtOnce) {
    FDL_RETURN_IF_ERROR(send_fds(socket, fds.subspan(first, std::min(kFdsAtOnce, fds.size() - first)), deadline));
  }
  return {};
}

Result<std::vector<UniqueFd>> receive_fds_in_parts(int socket, std::size_t count, const std::string& leader,
                                                   Deadline deadline) {
  std::vector<UniqueFd> fds;
  while (fds.size() < count) {
    auto received = recv_fds(socket, std::min(kFdsAtOnce, count - fds.size()), deadline);
    if (!received.ok()) return received.status().while_doing("receiving the shared memory of " + leader);
    for (UniqueFd& fd : *received) fds.push_back(std::move(fd));
  }
  return fds;
}

}  // namespace fdl
