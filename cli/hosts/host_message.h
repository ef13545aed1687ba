#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

// The language of `weir up` and its agents on hosts. Each message is a line of text fields, and can be told
// from lines that a shell or ssh prints on the same stream.
//
// To the agent:
//   prepare DIRECTORY PROGRAM SHARED [NAME CONTENT]...   HostNeeds
//   start TASK [KIND VALUE]...                    kinds: arg, env (NAME=VALUE), file, sharers
//   signal TASK NUMBER
//   beat                                          nothing; an agent that hears nothing ends
// From the agent:
//   hello VERSION FOLDER SSH_CONNECTION           first; its own folder, for files
//   ready PS_SERVER WORKER | refused WHY          the answer to "prepare"; WORKER is "" if it has a PROGRAM
//   line TASK TEXT
//   file NAME PIECE "more"|"end"                  a file of "start" that its task has made
//   exit TASK CODE SIGNAL                         the last one about a task
//   failed TASK WHY                               instead, if it could not be started
namespace weir {

// The most bytes of one field of a message from an agent. Encoded, the message has to fit a line of
// Subprocess.
inline constexpr size_t kLongestPiece = 15000;

// With a line feed.
std::string EncodeMessage(const std::vector<std::string>& fields);
// `line` has no line feed. nullopt: the line is no message.
std::optional<std::vector<std::string>> DecodeMessage(absl::string_view line);

}  // namespace weir
