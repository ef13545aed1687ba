#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/protocol/message.h"
#include "common/shared_memory/doorbell.h"

namespace weir {

// The memory that one end of a connection over shared memory writes, and that the other end only reads. It
// lies in a segment of the writing end.
struct RingArea {
  static constexpr uint64_t kBytes = 64 << 10;  // a power of two
  static constexpr uint32_t kNoBell = UINT32_MAX;

  // Bytes that this end has ever written to `bytes`, and has ever read from the other end's.
  alignas(64) std::atomic<uint64_t> written{0};
  alignas(64) std::atomic<uint64_t> read{0};
  // Which of this end's doorbells wakes the thread that reads. kNoBell: no thread reads yet.
  std::atomic<uint32_t> bell{kNoBell};
  // This end waits for the other end to read.
  std::atomic<uint32_t> blocked{0};
  // This end wants to be woken for relaxed messages, too.
  std::atomic<uint32_t> eager{0};
  // A ring: byte i of the connection lies at i modulo kBytes.
  alignas(64) char bytes[kBytes];
};

// A RingArea in whole pages: in a segment that holds more, the rest begins there. Bytes.
inline constexpr uint64_t kRingAreaPages = (sizeof(RingArea) + 4095) / 4096 * 4096;

// One end of a connection between two processes of a machine: two rings of bytes in shared memory, one each
// way, which carry messages of any length, in their order. Neither end waits: bytes that do not fit yet are
// kept, and the doorbell of the other end's thread rings when that thread has something to do.
//
// A message is its length (4 bytes) and its bytes. The other end may write anything into its area at any
// time; all that is read there is copied and checked.
//
// One thread at a time writes (Write(), Flush()), and one at a time reads.
class MessageRing {
 public:
  // `own` and `peer` stay mapped as long as `memory` is held; `bells` are the peer's doorbells. Messages
  // above `max_message` bytes that arrive are errors.
  MessageRing(RingArea* own, const RingArea* peer, std::shared_ptr<DoorbellPage> bells, uint64_t max_message,
              std::shared_ptr<const void> memory);

  // From now on the peer rings this doorbell of the process's page. The caller then reads once before any
  // ring, since a message may have come already.
  void ReadWith(uint32_t bell) { own_->bell.store(bell, std::memory_order_seq_cst); }

  // From now on the peer rings for relaxed messages, too. The caller then reads once before any ring.
  void WantAll() { own_->eager.store(1, std::memory_order_seq_cst); }

  // Sends a message. A relaxed message does not wake the peer, unless the peer wants all. False: a part of
  // the message does not fit yet; Flush() must have returned true before the next message.
  bool Write(OutgoingMessage message);
  // Sends more of the last message. True: all of it has been sent.
  bool Flush();
  bool flushed() const { return pending_.payload.empty() && pending_.head.empty(); }
  // Returns whether Flush() would send something.
  bool MayFlush() const;

  // Takes the next message. False: it has not come whole yet. DataLoss: what the peer writes makes no sense.
  absl::StatusOr<bool> Read(std::string* message);
  // Returns whether Read() would find new bytes. Called by the thread that reads.
  bool MayRead() const;

 private:
  // Bytes that fit.
  uint64_t Room() const;
  // Writes as many of the bytes as fit, and returns how many did.
  uint64_t Append(absl::string_view bytes);
  void RingPeer(bool relaxed = false);

  RingArea* const own_;
  const RingArea* const peer_;
  const std::shared_ptr<DoorbellPage> bells_;
  const uint64_t max_message_;
  const std::shared_ptr<const void> memory_;

  // Of the thread that writes. Bytes that are written and not published are counted only here.
  uint64_t written_ = 0;
  // The rest of the last message, which did not fit.
  OutgoingMessage pending_;

  // Of the thread that reads.
  uint64_t read_ = 0;
  // The message that is arriving, and how long it will be, once its length has come.
  std::string partial_;
  std::optional<uint64_t> length_;
};

}  // namespace weir
