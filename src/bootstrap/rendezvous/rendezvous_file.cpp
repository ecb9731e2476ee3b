// A rendezvous file has two lines: the address, and a mark that tells it from other files. Ranks read the first line.
#include "bootstrap/rendezvous/rendezvous_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/escape.h"
#include "system/fd.h"
#include "system/files/small_file.h"

namespace fdl {
namespace {

constexpr std::string_view kMark = "farandole rendezvous";
constexpr std::size_t kMostOfFile = 65536;  // an address for each network interface of a host

Status unusable(const std::string& path, const std::string& why) {
  return Status(Code::invalid_argument,
                fmt::format("the rendezvous {} cannot be used: {}; name a path at which there is no file, in "
                            "a folder that all ranks share",
                            quoted_text("file://" + path), why));
}

Status unusable(const std::string& path, const Status& why) {
  return why.code() == Code::invalid_argument
             ? unusable(path, why.text())
             : why.while_doing("using the rendezvous " + quoted_text("file://" + path));
}

Status not_written(const std::string& path) {
  const int error_number = errno;
  FDL_RETURN_IF_ERROR(Status::shortage("writing the rendezvous " + quoted_text("file://" + path), error_number));
  return unusable(path, fmt::format("it cannot be written: {}", std::strerror(error_number)));
}

std::optional<Rendezvous> address_in(std::string_view content) {
  auto address = parse_rendezvous(content.substr(0, content.find('\n')));
  if (!address.ok() || address->kind != Rendezvous::Kind::tcp) return std::nullopt;
  return address.take();
}

std::string content_for(std::string_view address) { return fmt::format("{}\n{}\n", address, kMark); }

bool is_rendezvous_file(std::string_view content) {
  return address_in(content) && content == content_for(content.substr(0, content.find('\n')));
}

// Returns whether nothing is at the path. Anything but a rendezvous file and an empty file, such as mktemp makes, is an
// error.
Result<bool> is_free(const std::string& path) {
  // A coordinator writes no symbolic link, and the reader would follow it.
  struct stat about {};
  if (::lstat(path.c_str(), &about) == 0 && S_ISLNK(about.st_mode)) return unusable(path, "it is a symbolic link");
  auto content = read_small_file(path, kMostOfFile);
  if (!content.ok()) return unusable(path, content.status());
  if (!*content) return true;
  if ((*content)->empty() || is_rendezvous_file(**content)) return false;
  return unusable(path, "a file is there that no coordinator has written");
}

// Two coordinators may start at once, and other programs may write at the path.
Status put_in_place(const std::string& aside, const std::string& path) {
  FDL_ASSIGN_OR_RETURN(const bool free, is_free(path));
  if (free) {
    // link() does not replace a file that has appeared since.
    if (::link(aside.c_str(), path.c_str()) == 0) return {};
    // On file systems without hard links the check has to suffice.
    if (errno == EEXIST) FDL_RETURN_IF_ERROR(is_free(path).status());
  }
  return ::rename(aside.c_str(), path.c_str()) == 0 ? Status() : not_written(path);
}

Status write_whole(int fd, const std::string& content, const std::string& path) {
  const ssize_t count = ::write(fd, content.data(), content.size());
  if (count < 0) return not_written(path);
  if (count == static_cast<ssize_t>(content.size())) return {};
  return Status(Code::resource,  // errno is not set
                fmt::format("writing the rendezvous {}: only a part was written; the disk may be full",
                            quoted_text("file://" + path)));
}

}  // namespace

Result<std::unique_ptr<RendezvousFile>> RendezvousFile::write(const std::string& path, const std::string& address) {
  FDL_RETURN_IF_ERROR(is_free(path).status());  // before a file is made beside it
  std::string aside = path + ".XXXXXX";
  UniqueFd fd(::mkostemp(aside.data(), O_CLOEXEC));
  if (!fd) return not_written(path);
  const std::string content = content_for(address);
  Status failure = write_whole(fd.get(), content, path);
  if (failure.ok()) failure = put_in_place(aside, path);
  ::unlink(aside.c_str());  // a second name of the file after link(), and nothing after rename()
  if (!failure.ok()) return failure;
  return std::unique_ptr<RendezvousFile>(new RendezvousFile(path, content));
}

RendezvousFile::~RendezvousFile() {
  const auto content = read_small_file(path_, kMostOfFile);
  if (content.ok() && *content == content_) ::unlink(path_.c_str());
}

Result<std::optional<Rendezvous>> read_rendezvous_file(const std::string& path) {
  auto content = read_small_file(path, kMostOfFile);
  if (!content.ok()) return unusable(path, content.status());
  if (!*content || (*content)->empty()) return std::optional<Rendezvous>();
  auto address = address_in(**content);
  if (!address) return unusable(path, "a file is there that no coordinator has written");
  return address;
}

}  // namespace fdl
