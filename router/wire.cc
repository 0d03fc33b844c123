#include "router/wire.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/empty.pb.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"

namespace baton::router {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

int ContinuationBytes(unsigned char lead) {
  return lead < 0x80   ? 0
         : lead < 0xC2 ? -1
         : lead < 0xE0 ? 1
         : lead < 0xF0 ? 2
         : lead < 0xF5 ? 3
                       : -1;
}

// As protobuf judges it: no surrogates, nothing overlong, nothing above U+10FFFF.
bool IsUtf8(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const int more = ContinuationBytes(lead);
    if (more < 0 || i + more >= text.size()) return false;
    for (int j = 1; j <= more; ++j) {
      if ((static_cast<unsigned char>(text[i + j]) & 0xC0) != 0x80) return false;
    }
    const auto second = more > 0 ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (lead == 0xE0 && second < 0xA0) return false;
    if (lead == 0xED && second > 0x9F) return false;
    if (lead == 0xF0 && second < 0x90) return false;
    if (lead == 0xF4 && second > 0x8F) return false;
    i += more + 1;
  }
  return true;
}

// The path of the first string field that is not UTF-8; empty if there is none.
std::string BrokenText(const UnknownFieldSet& fields, const Descriptor& type) {
  for (int i = 0; i < fields.field_count(); ++i) {
    const UnknownField& field = fields.field(i);
    const FieldDescriptor* descriptor = type.FindFieldByNumber(field.number());
    if (descriptor == nullptr || field.type() != UnknownField::TYPE_LENGTH_DELIMITED) continue;
    if (descriptor->type() == FieldDescriptor::TYPE_STRING) {
      if (!IsUtf8(field.length_delimited())) return descriptor->name();
    } else if (descriptor->type() == FieldDescriptor::TYPE_MESSAGE) {
      UnknownFieldSet inner;
      if (!inner.ParseFromString(field.length_delimited())) continue;
      std::string path = BrokenText(inner, *descriptor->message_type());
      if (!path.empty()) return absl::StrCat(descriptor->name(), ".", path);
    }
  }
  return "";
}

}  // namespace

absl::Status ParseRequest(const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  grpc::ByteBuffer copy = bytes;  // shares the slices; parsing consumes its own
  grpc::ProtoBufferReader reader(&copy);
  if (reader.status().ok() && message->ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  // Without its type, text is just bytes: what remains broken is not a protobuf message at all.
  std::vector<grpc::Slice> slices;
  std::string flat;
  if (bytes.Dump(&slices).ok()) {
    for (const grpc::Slice& slice : slices) {
      flat.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
  }
  UnknownFieldSet fields;
  if (fields.ParseFromString(flat)) {
    const std::string field = BrokenText(fields, *message->GetDescriptor());
    if (!field.empty()) return InvalidField("NOT_UTF8", field, "the text is not valid UTF-8");
  }
  return MakeError(absl::StatusCode::kInvalidArgument, "MALFORMED_REQUEST",
                   absl::StrCat("the request is not a ", message->GetDescriptor()->full_name()));
}

grpc::ByteBuffer ToBytes(const google::protobuf::Message& message) {
  grpc::ByteBuffer bytes;
  bool own_buffer;
  const grpc::Status status =
      grpc::GenericSerialize<grpc::ProtoBufferWriter, google::protobuf::Message>(message, &bytes,
                                                                                 &own_buffer);
  BATON_CHECK(status.ok()) << "serializing " << message.GetDescriptor()->full_name();
  return bytes;
}

}  // namespace baton::router
