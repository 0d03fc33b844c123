"""The messages of proto/baton/v1, generated when the wheel is built: inference_pb2, admin_pb2."""
