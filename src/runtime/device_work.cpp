// DeviceWork: one stream, one mark, and the memory of the largest bucket so far.
#include "runtime/device_work.h"

#include "base/log.h"

namespace fdl {

Result<std::unique_ptr<DeviceWork>> DeviceWork::make(std::shared_ptr<UsedDevice> used) {
  FDL_ASSIGN_OR_RETURN(const Stream stream, used->device().make_stream());
  auto mark = used->mark(stream);
  if (!mark.ok()) {
    used->device().end_stream(stream);
    return mark.status();
  }
  return std::unique_ptr<DeviceWork>(new DeviceWork(std::move(used), stream, *mark));
}

DeviceWork::~DeviceWork() {
  release_packed();
  used_->give_back(finished_);
  device().end_stream(stream_);
}

Status DeviceWork::begin_after(const DevicePlace& place) {
  return place.stream() == stream_ ? Status() : device().wait(stream_, place.submitted());
}

Status DeviceWork::finish() { return device().set(finished_, stream_); }

Status DeviceWork::hand_over(const DevicePlace& place) { return device().wait(place.stream(), finished_); }

void DeviceWork::release_packed() {
  if (packed_ != nullptr) pinned_ ? device().release_pinned(packed_) : device().release(packed_);
  packed_ = nullptr;
  capacity_ = 0;
}

Result<void*> DeviceWork::packed(std::size_t bytes) {
  if (bytes <= capacity_ && packed_ != nullptr) return packed_;
  release_packed();
  auto grown = device().allocate(bytes);
  pinned_ = !grown.ok() && grown.status().code() == Code::resource;
  if (pinned_) {
    log_warning(
        "{}; the fusion buffer of {} bytes is in memory of the host, which is slow: lower FARANDOLE_FUSION_BYTES",
        grown.status().text(), bytes);
    grown = device().allocate_pinned(bytes);
  }
  if (!grown.ok()) {
    return grown.status().while_doing("growing a fusion buffer to " + std::to_string(bytes) +
                                      " bytes; lower FARANDOLE_FUSION_BYTES");
  }
  packed_ = *grown;
  capacity_ = bytes;
  return packed_;
}

}  // namespace fdl
