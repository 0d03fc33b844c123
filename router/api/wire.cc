#include "router/api/wire.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/empty.pb.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/rpc/answer_watch.h"
#include "common/base/utf8.h"
#include "router/options.h"
#include "router/request/unread_answers.h"

namespace baton::router {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

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

std::function<void()> CutBehind(grpc::CallbackServerContext* context, const RouterParts& parts) {
  return [context, most = parts.unread.most_bytes()] {
    CutCall(context->c_call(), ReadersBehind(most));
  };
}

absl::Duration StallLimit(const RouterParts& parts) {
  return absl::Milliseconds(parts.options.write_stall_timeout_ms);
}

}  // namespace baton::router
