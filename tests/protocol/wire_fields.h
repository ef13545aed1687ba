#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "google/protobuf/message.h"

namespace weir {

// The fields, values and calls of one version of the protocol, a line each:
//
//   weir.v1.Coordinator.Join: weir.v1.JoinRequest -> weir.v1.JoinReply
//   weir.v1.Caller.worker = 1: uint32
//   weir.v1.PushOutcome.OK = 1
//
// Of the services of Weir, and of the messages and enums that they reach.
using WireFields = std::set<std::string>;

// The present version's.
WireFields PresentWireFields();

struct EarlierWire {
  uint32_t major = 0, minor = 0;
  WireFields fields;
};
// The version before this one, from the file that print_wire_fields wrote then.
EarlierWire LastVersion();

// Makes the message what a process of the earlier version would have sent, or understood: without the fields
// that it lacks, and with its version wherever a process says which version it speaks. False: it was so
// before.
bool MakeEarlier(const EarlierWire& earlier, google::protobuf::Message* message);

}  // namespace weir
