#include "tests/protocol/wire_fields.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "proto/coordinator.pb.h"
#include "proto/failure.pb.h"
#include "proto/model.pb.h"
#include "proto/parameter_server.pb.h"
#include "proto/shard_control.pb.h"

namespace weir {
namespace {

constexpr char kLastVersion[] = "tests/protocol/wire_1_10.txt";

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;
using google::protobuf::Reflection;
using google::protobuf::ServiceDescriptor;

std::string Line(const FieldDescriptor& field) {
  const std::string type = field.message_type() != nullptr ? field.message_type()->full_name()
                           : field.enum_type() != nullptr  ? field.enum_type()->full_name()
                                                           : field.type_name();
  return absl::StrCat(field.full_name(), " = ", field.number(), ": ", field.is_repeated() ? "repeated " : "",
                      type);
}

std::string Line(const MethodDescriptor& method) {
  return absl::StrCat(method.full_name(), ": ", method.client_streaming() ? "stream " : "",
                      method.input_type()->full_name(), " -> ", method.server_streaming() ? "stream " : "",
                      method.output_type()->full_name());
}

void Add(const EnumDescriptor& type, WireFields* fields) {
  for (int i = 0; i < type.value_count(); ++i) {
    const auto& value = *type.value(i);
    fields->insert(absl::StrCat(type.full_name(), ".", value.name(), " = ", value.number()));
  }
}

void Add(const Descriptor& type, WireFields* fields) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (!fields->insert(Line(field)).second) continue;
    if (field.enum_type() != nullptr) Add(*field.enum_type(), fields);
    if (field.message_type() != nullptr) Add(*field.message_type(), fields);
  }
}

}  // namespace

WireFields PresentWireFields() {
  WireFields fields;
  for (const FileDescriptor* file :
       {v1::JoinRequest::descriptor()->file(), v1::PushRequest::descriptor()->file(),
        v1::ControlMessage::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) {
      const ServiceDescriptor& service = *file->service(i);
      for (int j = 0; j < service.method_count(); ++j) {
        const MethodDescriptor& method = *service.method(j);
        fields.insert(Line(method));
        Add(*method.input_type(), &fields);
        Add(*method.output_type(), &fields);
      }
    }
  }
  // Travels beside the status of a call that failed.
  Add(*v1::StatusDetails::descriptor(), &fields);
  return fields;
}

EarlierWire LastVersion() {
  EarlierWire earlier;
  std::ifstream file(kLastVersion);
  std::string line;
  std::getline(file, line);
  if (std::sscanf(line.c_str(), "# %u.%u", &earlier.major, &earlier.minor) != 2) {
    std::fprintf(stderr, "%s:1: '%s'; wanted a version such as '# 1.4'\n", kLastVersion, line.c_str());
    std::abort();
  }
  while (std::getline(file, line)) earlier.fields.insert(line);
  return earlier;
}

bool MakeEarlier(const EarlierWire& earlier, Message* message) {
  bool changed = false;
  const Reflection& reflection = *message->GetReflection();
  std::vector<const FieldDescriptor*> set;
  reflection.ListFields(*message, &set);
  for (const FieldDescriptor* field : set) {
    if (earlier.fields.count(Line(*field)) == 0) {
      reflection.ClearField(message, field);
      changed = true;
    } else if (field->message_type() == nullptr) {
      continue;
    } else if (field->is_repeated()) {
      for (int i = 0; i < reflection.FieldSize(*message, field); ++i)
        changed |= MakeEarlier(earlier, reflection.MutableRepeatedMessage(message, field, i));
    } else {
      changed |= MakeEarlier(earlier, reflection.MutableMessage(message, field));
    }
  }
  if (auto* version = dynamic_cast<v1::ProtocolVersion*>(message)) {
    version->set_major(earlier.major);
    version->set_minor(earlier.minor);
    changed = true;
  }
  return changed;
}

}  // namespace weir
