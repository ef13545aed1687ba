#!/usr/bin/python3
"""Reads a safetensors file by its specification, with the standard library alone, and prints what is in it: the metadata, then a
line for each tensor with its name, shape and values (float32 as hex).
"""
import json
import struct
import sys

with open(sys.argv[1], "rb") as file:
    content = file.read()
(length,) = struct.unpack("<Q", content[:8])
assert length % 8 == 0, "the header is not padded to eight bytes"
header = json.loads(content[8:8 + length].decode("utf-8"))
data = content[8 + length:]

metadata = header.pop("__metadata__")
assert all(isinstance(value, str) for value in metadata.values())
lines = [" ".join(f"{key}={metadata[key]}" for key in sorted(metadata))]
end = 0
for name, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
    assert tensor["dtype"] == "F32", tensor
    begin, stop = tensor["data_offsets"]
    assert begin == end, f"{name} does not follow what is before it"
    end = stop
    values = struct.unpack(f"<{(stop - begin) // 4}I", data[begin:stop])
    elements = 1
    for dimension in tensor["shape"]:
        elements *= dimension
    assert len(values) == elements, f"{name}: shape {tensor['shape']} for {len(values)} values"
    lines.append(" ".join([name, str(tensor["shape"]), *(f"{value:08x}" for value in values)]))
assert end == len(data), "bytes follow the last tensor"
sys.stdout.buffer.write(("\n".join(lines) + "\n").encode("utf-8"))
