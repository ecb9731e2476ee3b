// OfiLibrary is libfabric, opened at run time. Its header's inline functions call through tables of the library, so
// only a few functions are looked up by name.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include <memory>
#include <string>

#include "base/config.h"
#include "base/status.h"

namespace fdl {

class OfiLibrary {
 public:
  // Returns the libfabric of this process: the file in FARANDOLE_OFI_LIBRARY; else the one that the process has loaded,
  // that of AWS's EFA installer, or the system's. It stays open.
  static Result<const OfiLibrary*> of_process(const Config& config);

  const std::string& description() const { return description_; }  // "libfabric 1.17 (/usr/lib/libfabric.so.1)"
  const std::string& version() const { return version_; }          // "1.17"
  // The text of a negative result of libfabric.
  std::string text_of(int64_t code) const { return text_of_(static_cast<int>(code < 0 ? -code : code)); }

  using Infos = std::unique_ptr<fi_info, void (*)(fi_info*)>;
  Infos make_info() const { return {duplicate_(nullptr), free_}; }
  Infos copy(const fi_info* info) const { return {duplicate_(info), free_}; }
  // Asks for what fits the hints. The error has libfabric's code in its text.
  Result<Infos> find(const fi_info* hints) const;
  int open_fabric(fi_fabric_attr* attributes, fid_fabric** fabric) const {
    return fabric_(attributes, fabric, nullptr);
  }

 private:
  Status open(const Config& config);

  std::string description_;
  std::string version_;
  uint32_t interface_ = 0;  // the version that this library is asked for
  uint32_t (*version_of_)() = nullptr;
  const char* (*text_of_)(int) = nullptr;
  fi_info* (*duplicate_)(const fi_info*) = nullptr;
  void (*free_)(fi_info*) = nullptr;
  int (*find_)(uint32_t, const char*, const char*, uint64_t, const fi_info*, fi_info**) = nullptr;
  int (*fabric_)(fi_fabric_attr*, fid_fabric**, void*) = nullptr;
};

}  // namespace fdl
