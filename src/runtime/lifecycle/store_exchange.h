// StoreExchange: facts that some ranks tell each other, in the store of the world.
#pragma once

#include <string>
#include <string_view>

#include "bootstrap/coordinator/coordinator_client.h"
#include "system/handshake.h"

namespace fdl {

// Under a prefix of its own for each use. The link outlives it.
class StoreExchange final : public Exchange {
 public:
  StoreExchange(CoordinatorClient& link, std::string prefix) : link_(link), prefix_(std::move(prefix)) {}
  Status publish(std::string_view key, std::string_view value) override {
    return link_.publish(prefix_ + "/" + std::string(key), value);
  }
  Result<std::string> fetch(std::string_view key, Deadline deadline) override {
    return link_.fetch(prefix_ + "/" + std::string(key), deadline);
  }

 private:
  CoordinatorClient& link_;
  std::string prefix_;
};

}  // namespace fdl
