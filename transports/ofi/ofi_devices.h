// The devices of libfabric that a rank uses: of which provider, and which of those that are there.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "contract/membership.h"
#include "transports/ofi/ofi_library.h"

namespace fdl {

// Where a rank is among the ranks of its communicator.
struct OfiPlace {
  int index = 0;             // among the ranks of its host on its NUMA node
  int neighbours = 1;        // these ranks
  int most_on_one_host = 1;  // of any host, so that all ranks use equally many devices
  int numa_node = -1;        // of this rank; -1: not bound to one
};
OfiPlace place_in(const Membership& membership);

struct OfiChoice {
  std::vector<OfiLibrary::Infos> devices;
  std::size_t present = 0;  // devices of the provider
  std::string unused;       // why the others are not used; empty if all are
};

// Returns the devices to use, all of one provider. `provider` is libfabric's name ("efa", "tcp", "udp;ofi_rxd"), or
// "efa-direct" for the other fabric of the provider efa; empty: the first one that reaches other hosts.
//
// A device list in FARANDOLE_OFI_DEVICES is obeyed. Else one device is used of providers over IP, the one with the
// address that TCP would use. Other devices are shared among the ranks of a host, the nearest to each first. The error
// lists each candidate and what it lacks.
Result<OfiChoice> choose_devices(const OfiLibrary& library, std::string_view provider, const Config& config,
                                 const OfiPlace& place);

// The name of a device in sysfs: "rdmap16s27" of the domain "rdmap16s27-rdm".
std::string device_name(const fi_info& info);

// The providers that fit, with their devices: "tcp;ofi_rxm on eth0, lo; udp;ofi_rxd on eth0".
std::string list_providers(const OfiLibrary& library);

// The indices of the devices that a rank takes, of devices with these NUMA nodes (-1: unknown): near ones first. Ranks
// of one node take different ones while there are enough.
std::vector<std::size_t> share_of_devices(const std::vector<int>& numa_nodes, const OfiPlace& place);

}  // namespace fdl
