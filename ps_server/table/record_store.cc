#include "ps_server/table/record_store.h"

#include <algorithm>
#include <cstring>

namespace weir {

void RecordStore::Change(uint64_t hash, Record* record, uint64_t version) {
  if (!pins_.empty() && record->updated <= pins_.back().version) Keep(hash, record->key, record);
  if (changes_.has_value()) changes_->OnChange(*record);
  record->updated = version;
}

Record* RecordStore::Create(uint64_t hash, uint64_t key, uint64_t version) {
  // A record that was there at the pinned version may have been erased since: then its state is kept.
  if (!pins_.empty() && pins_.back().former.Find(hash, key) == nullptr) Keep(hash, key, nullptr);
  Record* const record = now_.Create(hash, key);
  record->updated = version;
  if (changes_.has_value()) changes_->OnCreate(key);
  return record;
}

void RecordStore::Erase(uint64_t hash, const Record* record) {
  if (!pins_.empty() && record->updated <= pins_.back().version) Keep(hash, record->key, record);
  if (changes_.has_value()) changes_->OnErase(*record);
  now_.Erase(hash, record->key);
}

void RecordStore::Keep(uint64_t hash, uint64_t key, const Record* record) {
  Record* const kept = pins_.back().former.Create(hash, key);
  kept->updated = record == nullptr ? kAbsent : record->updated;
  if (record != nullptr) std::memcpy(kept->words(), record->words(), now_.words() * sizeof(float));
}

void RecordStore::Pin(uint64_t version, std::shared_ptr<RecordPools> pools) {
  if (!pins_.empty() && pins_.back().version == version) {
    pins_.back().pinned = true;
  } else {
    pins_.emplace_back(version, now_.words(), buckets_, std::move(pools));
  }
}

void RecordStore::Unpin(uint64_t version) {
  pins_[PinOf(version)].pinned = false;
  // A former state serves all pins before it, too.
  while (!pins_.empty() && !pins_.front().pinned) pins_.pop_front();
}

size_t RecordStore::PinOf(uint64_t version) const {
  const auto pin = std::lower_bound(pins_.begin(), pins_.end(), version,
                                    [](const PinnedVersion& p, uint64_t v) { return p.version < v; });
  return static_cast<size_t>(pin - pins_.begin());
}

const Record* RecordStore::FindFormer(uint64_t version, size_t end, uint64_t hash, uint64_t key) const {
  for (size_t p = PinOf(version); p < end; ++p) {
    const Record* const record = pins_[p].former.Find(hash, key);
    if (record != nullptr) return record;
  }
  return nullptr;
}

const Record* RecordStore::FindAt(uint64_t version, uint64_t hash, uint64_t key, const Record* now) const {
  if (now != nullptr && now->updated <= version) return now;
  const Record* const former = FindFormer(version, pins_.size(), hash, key);
  return former == nullptr || former->updated == kAbsent ? nullptr : former;
}

size_t RecordStore::former_bytes() const {
  size_t bytes = 0;
  for (const PinnedVersion& pin : pins_) bytes += pin.former.bytes();
  return bytes;
}

}  // namespace weir
