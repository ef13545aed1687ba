"""C++ code from .proto files with the installed protoc, gRPC's plug-in included."""

def weir_proto_library(name, srcs, deps = [], grpc = False, visibility = None):
    """A cc_library `name` of the messages of `srcs`; with grpc = True also `name`_grpc with the service stubs.

    Args:
      name: the library's name.
      srcs: .proto files of this package.
      deps: other weir_proto_library targets that `srcs` import.
      grpc: whether `srcs` declare services.
      visibility: as everywhere.
    """
    stems = [s[:-len(".proto")] for s in srcs]
    native.filegroup(name = name + "_src", srcs = srcs, visibility = visibility)
    dep_srcs = [d + "_src" for d in deps]
    native.genrule(
        name = name + "_pb",
        srcs = srcs + dep_srcs,
        outs = [s + e for s in stems for e in [".pb.h", ".pb.cc"]],
        cmd = "protoc -I. --cpp_out=$(GENDIR) " + " ".join(["$(location %s)" % s for s in srcs]),
        message = "protoc",
    )
    native.cc_library(
        name = name,
        srcs = [s + ".pb.cc" for s in stems],
        hdrs = [s + ".pb.h" for s in stems],
        copts = ["-w"],
        deps = deps + ["@protobuf//:protobuf"],
        visibility = visibility,
    )
    if grpc:
        native.genrule(
            name = name + "_grpc_pb",
            srcs = srcs + dep_srcs,
            outs = [s + e for s in stems for e in [".grpc.pb.h", ".grpc.pb.cc"]],
            cmd = "protoc -I. --grpc_out=generate_mock_code=false:$(GENDIR) " +
                  "--plugin=protoc-gen-grpc=$$(command -v grpc_cpp_plugin) " +
                  " ".join(["$(location %s)" % s for s in srcs]),
            message = "protoc (gRPC)",
        )
        native.cc_library(
            name = name + "_grpc",
            srcs = [s + ".grpc.pb.cc" for s in stems],
            hdrs = [s + ".grpc.pb.h" for s in stems],
            copts = ["-w"],
            deps = [name, "@grpc//:grpc"],
            visibility = visibility,
        )
