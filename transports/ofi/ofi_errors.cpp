// EFA's codes are those of libfabric's efa provider (prov/efa, efa_errno), as users report them.
#include "transports/ofi/ofi_errors.h"

#include <fmt/format.h>

namespace fdl {

std::string_view meaning_of_efa_code(int detail) {
  switch (detail) {
    case 13:
      return "the peer does not respond: its process or its host is gone, or is stopped";
    case 15:
      return "the peer was never reached: allow all traffic of the security group to itself, in and out, and put all "
             "hosts into one subnet";
    case 4124:
      return "the peer was reached before and is gone: its process has ended";
    case 4126:
      return "the peer is reached but does not answer: allow all outgoing traffic of the security group to itself, or "
             "its process has ended";
    default:
      return {};
  }
}

Status ofi_failure(const OfiLibrary& library, std::string_view what, int code, int detail, std::string_view words,
                   std::string_view provider) {
  std::string text = fmt::format("ofi: {} failed: {} ({})", what, library.text_of(code), code);
  const std::string_view meaning = provider.starts_with("efa") ? meaning_of_efa_code(detail) : std::string_view();
  if (!meaning.empty()) {
    text += fmt::format("; EFA {}: {}", detail, meaning);
  } else if (detail != 0 && !words.empty()) {
    text += fmt::format("; {} {}: {}", provider, detail, words);
  }
  return Status(Code::transport, std::move(text));
}

}  // namespace fdl
