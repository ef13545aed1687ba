#!/usr/bin/python3
"""Makes, from proto/job_config.proto, what describes a job's config: configs/job.schema.json, a JSON Schema (draft 7) by which editors
complete and check, and docs/config.md, the reference of all fields.

  tools/config_reference.py           writes both files
  tools/config_reference.py --check   ends with 1 if one of them is not what this program would write
"""
import importlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap

from google.protobuf import descriptor_pb2

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCHEMA, PAGE = "configs/job.schema.json", "docs/config.md"
Field = descriptor_pb2.FieldDescriptorProto
REALS = (Field.TYPE_FLOAT, Field.TYPE_DOUBLE)
WHOLE = {Field.TYPE_UINT32: (0, 2**32 - 1), Field.TYPE_UINT64: (0, 2**64 - 1), Field.TYPE_INT32: (-2**31, 2**31 - 1)}
INTRO = """# The config of a job

All fields that a job's JSON may have, with types, defaults and limits. Comments (`//`) are allowed. `weir config check`
lists every error of a file with its place, and checks rules that join several fields.
[configs/job.schema.json](../configs/job.schema.json), which `weir config schema` prints, has the same as a JSON Schema: if
a job begins with `"$schema": "job.schema.json"`, editors complete its fields and mark wrong ones.

`tools/config_reference.py` makes this page from [proto/job_config.proto](../proto/job_config.proto).
"""


class Config:
    """The messages and enums of the proto, with their comments."""

    def __init__(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder, "set")
            subprocess.run(["protoc", "-I.", "--include_imports", "--include_source_info", f"--descriptor_set_out={out}",
                            f"--python_out={folder}", "proto/job_config.proto", "proto/options.proto"], cwd=ROOT, check=True)
            sys.path.insert(0, folder)
            self.limits = importlib.import_module("proto.options_pb2").limits
            files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
        file = next(f for f in files if f.name == "proto/job_config.proto")
        comments = {tuple(l.path): " ".join(l.leading_comments.split()) for l in file.source_code_info.location}
        self.messages, self.enums, self.comments = {}, {}, {}
        for i, message in enumerate(file.message_type):
            name = f".weir.v1.{message.name}"
            self.messages[name] = message
            self.comments[name] = comments.get((4, i), "")
            for j, field in enumerate(message.field):
                self.comments[name, field.name] = comments.get((4, i, 2, j), "")
            for j, enum in enumerate(message.enum_type):
                self.comments[f"{name}.{enum.name}"] = comments.get((4, i, 4, j), "")
                self.enums[f"{name}.{enum.name}"] = [
                    (word(enum, value), comments.get((4, i, 4, j, 2, k), "")) for k, value in enumerate(enum.value) if value.number]

    def limits_of(self, field):
        return field.options.Extensions[self.limits]

    def about(self, owner, field):
        """The comment before a field's enum, and the field's own."""
        return f"{self.comments[field.type_name] if field.type == Field.TYPE_ENUM else ''} {self.comments[owner, field.name]}".strip()


def word(enum, value):
    """As the config has it: "sync" for MODE_SYNC (EnumWord of common/config/proto_json.h)."""
    names = [v.name for v in enum.value]
    common = next((i for i, letters in enumerate(zip(*names)) if len(set(letters)) > 1), len(names[0]))
    return value.name[names[0].rfind("_", 0, common) + 1:].lower()


def default_of(config, field):
    if not field.HasField("default_value"):
        return None
    if field.type == Field.TYPE_BOOL:
        return field.default_value == "true"
    if field.type == Field.TYPE_ENUM:
        enum = next(e for m in config.messages.values() for e in m.enum_type if f".weir.v1.{m.name}.{e.name}" == field.type_name)
        return word(enum, next(v for v in enum.value if v.name == field.default_value))
    if field.type == Field.TYPE_STRING:
        return field.default_value
    number = float(field.default_value)
    return int(number) if number.is_integer() else number


def value_schema(config, field):
    """The schema of one value: the field's, or an element's if it is repeated."""
    limits = config.limits_of(field)
    if field.type == Field.TYPE_MESSAGE:
        return {"$ref": f"#/definitions/{field.type_name.rsplit('.', 1)[1]}"}
    if field.type == Field.TYPE_ENUM:
        return {"enum": [name for name, _ in config.enums[field.type_name]]}
    if field.type == Field.TYPE_BOOL:
        return {"type": "boolean"}
    if field.type == Field.TYPE_STRING:
        # The limits are bytes, and a schema counts characters, which are never more.
        schema = {"type": "string"}
        if not field.label == Field.LABEL_REPEATED:
            schema |= {"minLength": 1} if limits.min else {}
            schema |= {"maxLength": int(limits.max)} if limits.HasField("max") else {}
        return schema
    schema = {"type": "number" if field.type in REALS else "integer"}
    low, high = WHOLE.get(field.type, (None, None))
    if field.label != Field.LABEL_REPEATED:
        low = limits.min if limits.HasField("min") else low
        high = limits.max if limits.HasField("max") else high
    for bound, exclusive, names in ((low, limits.exclusive_min, ("minimum", "exclusiveMinimum")),
                                    (high, limits.exclusive_max, ("maximum", "exclusiveMaximum"))):
        if bound is not None:
            schema[names[exclusive]] = int(bound) if float(bound).is_integer() else bound
    return schema


def field_schema(config, owner, field):
    value, limits = value_schema(config, field), config.limits_of(field)
    about = config.about(owner, field)
    for name, comment in config.enums.get(field.type_name, []):
        about += f"\n- {name}: {comment}" if comment else f"\n- {name}"
    schema = {"description": about} if about else {}
    if field.label == Field.LABEL_REPEATED:
        schema |= {"type": "array", "items": value}
        schema |= {"minItems": int(limits.min)} if limits.HasField("min") else {}
        schema |= {"maxItems": int(limits.max)} if limits.HasField("max") else {}
    elif "$ref" in value and schema:
        schema["allOf"] = [value]  # draft 7 ignores what stands beside a $ref
    else:
        schema |= value
    default = default_of(config, field)
    return schema if default is None else schema | {"default": default}


def message_schema(config, name):
    message = config.messages[name]
    schema = {"description": config.comments[name]} if config.comments[name] else {}
    schema |= {"type": "object", "additionalProperties": False,
               "properties": {f.name: field_schema(config, name, f) for f in message.field}}
    required = [f.name for f in message.field if config.limits_of(f).required and not config.limits_of(f).used_with]
    schema |= {"required": required} if required else {}
    uses = [rule for f in message.field for rule in use_rules(config, name, f)]
    return schema | ({"allOf": uses} if uses else {})


def selector_of(config, name):
    """The field by whose word other fields of the message have a meaning, or None (used_with in proto/options.proto)."""
    return next((f for f in config.messages[name].field if f.type == Field.TYPE_ENUM), None)


def use_rules(config, name, field):
    """The field only with some words of the selector, and with those always if it is required."""
    limits = config.limits_of(field)
    if not limits.used_with:
        return
    selector = selector_of(config, name)
    used = list(limits.used_with)
    unused = [w for w, _ in config.enums[selector.type_name] if w not in used]

    def rule(words, then):
        about = {"properties": {selector.name: {"enum": words}}}
        absent = default_of(config, selector) in words  # then the default decides
        return {"if": about if absent else about | {"required": [selector.name]}, "then": then}

    yield rule(unused, {"properties": {field.name: False}})
    if limits.required:
        yield rule(used, {"required": [field.name]})


def json_schema(config):
    root = message_schema(config, ".weir.v1.JobConfig")
    root["properties"] = {"$schema": {"type": "string", "description": "For editors. Weir does not read it."}} | root["properties"]
    definitions = {m.name: message_schema(config, name) for name, m in config.messages.items() if m.name != "JobConfig"}
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "A training job of Weir"} | root
    return json.dumps(schema | {"definitions": definitions}, indent=1) + "\n"


def kind_text(config, field):
    """What a value may be: "a number in [0, 1)"."""
    limits, schema = config.limits_of(field), value_schema(config, field)
    real = field.type in REALS
    number = "{:g}".format if real else "{:.0f}".format
    if field.label == Field.LABEL_REPEATED:
        what = "objects" if field.type == Field.TYPE_MESSAGE else {"string": "strings"}.get(schema.get("type"), "whole numbers")
        return f"a list of {what}" + (f", at most {number(limits.max)}" if limits.HasField("max") else "")
    if field.type == Field.TYPE_MESSAGE:
        return "an object"
    if field.type == Field.TYPE_ENUM:
        return "one of " + ", ".join(f"`{name}`" for name in schema["enum"])
    if field.type == Field.TYPE_BOOL:
        return "true or false"
    if field.type == Field.TYPE_STRING:
        return "a string" + (f" of {number(limits.max)} bytes at most" if limits.max > 1 else "")
    low = number(limits.min) if limits.HasField("min") else "0" if field.type in (Field.TYPE_UINT32, Field.TYPE_UINT64) else ""
    high = number(limits.max) if limits.HasField("max") else ""
    what = "a number" if real else "a whole number"
    if low and high:
        return f"{what} in {'(' if limits.exclusive_min else '['}{low}, {high}{')' if limits.exclusive_max else ']'}"
    return what + (f" {'above' if limits.exclusive_min else 'of at least'} {low}" if low not in ("", "0") else "")


def linked(comment):
    return re.sub(r"docs/(\w+\.md)", r"[\1](\1)", comment)


def bullet(text, depth=0):
    return textwrap.fill(text, 120, initial_indent="  " * depth + "- ", subsequent_indent="  " * depth + "  ",
                         break_long_words=False, break_on_hyphens=False)


def page(config):
    places = {}

    def find(name, path):
        places.setdefault(name, []).append(path)
        for field in config.messages[name].field:
            if field.type == Field.TYPE_MESSAGE and len(places[name]) == 1:
                find(field.type_name, f"{path}.{field.name}".lstrip(".") + ("[]" if field.label == Field.LABEL_REPEATED else ""))

    find(".weir.v1.JobConfig", "")
    lines = [INTRO]
    for name in places:
        title = ", ".join(f"`{place}`" for place in places[name]) if places[name] != [""] else "The job"
        lines.append(f"## {title}\n")
        if config.comments[name] and places[name] != [""]:
            lines.append(textwrap.fill(linked(config.comments[name]), 120, break_long_words=False, break_on_hyphens=False) + "\n")
        for field in config.messages[name].field:
            facts = [kind_text(config, field)]
            default = default_of(config, field)
            limits = config.limits_of(field)
            if limits.used_with:
                facts.append(f"only with {selector_of(config, name).name} {', '.join(limits.used_with)}")
            facts += ["must be given" + " then" * bool(limits.used_with)] if limits.required else []
            facts += [f"default `{json.dumps(default)}`"] if default is not None else []
            about = linked(config.about(name, field))
            lines.append(bullet(f"**`{field.name}`**: {', '.join(facts)}." + (f" {about}" if about else "")))
            lines += [bullet(f"`{value}`: {linked(comment)}", 1) for value, comment in config.enums.get(field.type_name, []) if comment]
        lines.append("")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines).rstrip() + "\n")


def main():
    config = Config()
    made = {SCHEMA: json_schema(config), PAGE: page(config)}
    if sys.argv[1:] == ["--check"]:
        stale = [path for path, text in made.items() if not (ROOT / path).exists() or (ROOT / path).read_text(encoding="utf-8") != text]
        print("\n".join(f"{path} is not what tools/config_reference.py makes from proto/job_config.proto: run it" for path in stale))
        sys.exit(1 if stale else 0)
    for path, text in made.items():
        (ROOT / path).write_text(text, encoding="utf-8")


main()
