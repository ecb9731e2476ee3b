// SharedSegment uses memfd_create. Its size is sealed, so access to pages that are reserved cannot raise SIGBUS.
#include "system/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <utility>

namespace fdl {
namespace {

// With a fixed size, a process that maps the segment cannot be killed by another one that truncates the file.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

// The size of the kernel's transparent huge pages, or 0 if it has none.
std::size_t huge_page_bytes() {
  static const std::size_t bytes = [] {
    std::size_t size = 0;
    std::ifstream("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size") >> size;
    return size;
  }();
  return bytes;
}

// Reserves an aligned address range in which the file's huge pages can be mapped as such. Returns null if the segment
// is small or address space is short.
void* place_for(std::size_t bytes) {
  const std::size_t huge = huge_page_bytes();
  if (huge == 0 || bytes < huge) return nullptr;
  bytes = round_up(bytes, SharedSegment::page_bytes());  // munmap() refuses an address inside a page
  // One huge page more than needed: the excess before and behind the aligned part is returned below.
  void* start = ::mmap(nullptr, bytes + huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return nullptr;
  auto* first = static_cast<std::byte*>(start);
  auto* place = first + (huge - reinterpret_cast<uintptr_t>(first) % huge) % huge;
  if (place != first) ::munmap(first, static_cast<std::size_t>(place - first));
  const auto behind = static_cast<std::size_t>(first + huge - place);
  if (behind != 0) ::munmap(place + bytes, behind);
  return place;
}

// Maps the whole file. MAP_FIXED replaces the range that place_for() has reserved.
Result<Bytes> map_whole(int fd, std::size_t bytes) {
  void* place = place_for(bytes);
  void* start = ::mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (place == nullptr ? 0 : MAP_FIXED), fd, 0);
  if (start != MAP_FAILED) return Bytes(static_cast<std::byte*>(start), bytes);
  const Status failure = Status::from_errno("mapping " + std::to_string(bytes) + " bytes of shared memory");
  if (place != nullptr) ::munmap(place, bytes);
  return failure;
}

std::string reserving(std::size_t bytes) { return "reserving " + std::to_string(bytes) + " bytes of shared memory"; }

// Refuses a size above the host's memory. Otherwise the kernel would allocate page by page and start its out-of-memory
// killer before it fails.
Status fault_of_size(std::size_t bytes) {
  struct sysinfo info {};
  if (::sysinfo(&info) != 0 || bytes / info.mem_unit <= info.totalram) return {};
  return Status::from_errno(reserving(bytes), ENOMEM);
}

Result<UniqueFd> make_file() {
  UniqueFd fd(::memfd_create("farandole", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return Status::from_errno("memfd_create");
  return fd;
}

}  // namespace

Result<SharedSegment> SharedSegment::create(std::size_t bytes) {
  FDL_ASSIGN_OR_RETURN(SharedSegment segment, create_on_demand(bytes));
  FDL_RETURN_IF_ERROR(segment.commit(0, bytes));
  return segment;
}

Result<SharedSegment> SharedSegment::create_on_demand(std::size_t bytes) {
  if (bytes == 0) return Status(Code::invalid_argument, "shared memory of 0 bytes");
  FDL_RETURN_IF_ERROR(fault_of_size(bytes));
  return create_empty(bytes);
}

Result<SharedSegment> SharedSegment::create_sparse(std::size_t bytes) {
  FDL_ASSIGN_OR_RETURN(SharedSegment segment, create_empty(bytes));
  ::madvise(segment.bytes_.data(), bytes, MADV_DONTDUMP);
  return segment;
}

Result<SharedSegment> SharedSegment::create_empty(std::size_t bytes) {
  // Resizing a file beyond this limit would raise SIGXFSZ.
  struct rlimit largest {};
  if (::getrlimit(RLIMIT_FSIZE, &largest) == 0 && largest.rlim_cur != RLIM_INFINITY && bytes > largest.rlim_cur) {
    return Status(Code::resource, "shared memory of " + std::to_string(bytes) + " bytes is above ulimit -f");
  }
  FDL_ASSIGN_OR_RETURN(UniqueFd fd, make_file());
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return Status::from_errno("sizing shared memory");
  // Sealed before the descriptor is passed to any other process.
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return Status::from_errno("sealing shared memory");
  FDL_ASSIGN_OR_RETURN(const Bytes memory, map_whole(fd.get(), bytes));
  return SharedSegment(std::move(fd), memory);
}

Result<SharedSegment> SharedSegment::map(UniqueFd fd) {
  struct stat about {};
  if (::fstat(fd.get(), &about) != 0) return Status::from_errno("reading the size of shared memory");
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || about.st_size <= 0) {
    return Status(Code::transport,
                  "the received descriptor is not a sealed segment of shared memory; is the sender a farandole rank?");
  }
  FDL_ASSIGN_OR_RETURN(const Bytes memory, map_whole(fd.get(), static_cast<std::size_t>(about.st_size)));
  ::madvise(memory.data(), memory.size(), MADV_DONTDUMP);  // it may be sparse: see create_sparse()
  return SharedSegment(std::move(fd), memory);
}

// Collapses the range into huge pages. 2 MiB then cost one page fault and one TLB entry instead of 512, in each rank
// that uses the memory. If that fails (an old kernel, no huge page left), small pages remain.
void SharedSegment::gather(std::size_t offset, std::size_t bytes) const {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, since Linux 6.1: ignores the settings of transparent huge pages
  const std::size_t huge = huge_page_bytes();
  if (huge == 0) return;
  const std::size_t first = round_up(offset, huge);
  const std::size_t end = (offset + bytes) / huge * huge;
  // The kernel collapses only ranges that have at least one page, so allocate one in each.
  for (std::size_t at = first; at < end; at += huge) {
    if (::fallocate(fd_.get(), 0, static_cast<off_t>(at), static_cast<off_t>(page_bytes())) != 0) return;
  }
  if (first < end) ::madvise(bytes_.data() + first, end - first, kCollapse);
}

Status SharedSegment::commit(std::size_t offset, std::size_t bytes) const {
  FDL_RETURN_IF_ERROR(fault_of_size(bytes));
  gather(offset, bytes);
  // posix_fallocate() returns its error and does not set errno.
  int failure = EINTR;
  while (failure == EINTR) {
    failure = ::posix_fallocate(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes));
  }
  return failure == 0 ? Status() : Status::from_errno(reserving(bytes), failure);
}

bool SharedSegment::discard(std::size_t offset, std::size_t bytes) const {
  // The pages leave all processes that map them; the next access would find zeros.
  return ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                     static_cast<off_t>(bytes)) == 0;
}

Status SharedSegment::detach(std::size_t offset, std::size_t bytes) const {
  void* copy = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return Status::from_errno("mapping " + std::to_string(bytes) + " bytes of memory");
  std::memcpy(copy, bytes_.data() + offset, bytes);
  // Replaces the shared pages in one step: there is no moment without a mapping.
  void* place = ::mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, bytes_.data() + offset);
  if (place != MAP_FAILED) return {};
  const Status failure = Status::from_errno("remapping shared memory");
  ::munmap(copy, bytes);
  return failure;
}

std::size_t SharedSegment::page_bytes() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

std::size_t SharedSegment::largest_page_bytes() { return std::max(page_bytes(), huge_page_bytes()); }

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : fd_(std::move(other.fd_)), bytes_(std::exchange(other.bytes_, {})) {}

SharedSegment& SharedSegment::operator=(SharedSegment&& other) noexcept {
  if (this != &other) {
    if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
    fd_ = std::move(other.fd_);
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

SharedSegment::~SharedSegment() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace fdl
