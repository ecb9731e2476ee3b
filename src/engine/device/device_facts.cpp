// device_facts() logs why there is no library, because the ranks only learn that there is none.
#include "engine/device/device_facts.h"

#include "base/log.h"

namespace fdl {
namespace {

// FNV-1a. Ranks compare host ids by number, because DeviceFacts has a fixed size.
uint64_t number_of(std::string_view text) {
  uint64_t state = 0xcbf29ce484222325;
  for (const char c : text) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return state;
}

}  // namespace

DeviceFacts device_facts(Device& device, const Member& me, const Config& config,
                         const std::function<Result<DeviceLibrary*>()>& find, DeviceLibrary*& library) {
  DeviceFacts facts;
  facts.kind = device.kind();
  facts.device = device.identity();
  facts.host = number_of(me.host_id);
  facts.required = config.device_collectives == "nccl" ? 1 : 0;
  if (config.device_collectives == "staged" || !find) return facts;
  auto found = find();
  if (!found.ok()) {
    log_at(facts.required != 0 ? LogLevel::warning : LogLevel::info, "no library for collectives on devices: {}",
           found.status().text());
  } else if (*found != nullptr) {
    library = *found;
    facts.version = library->version();
    facts.shares_devices = library->shares_devices() ? 1 : 0;
  }
  return facts;
}

}  // namespace fdl
