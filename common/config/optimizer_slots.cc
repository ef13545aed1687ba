#include "common/config/optimizer_slots.h"

#include <cstring>

namespace weir {

void AddRowSlots(const v1::TableConfig& table, absl::Span<const float> words, v1::RowState* row) {
  if (words.size() != TableRowValues(table) - table.dim()) {
    v1::RowSlot& all = *row->add_slots();
    all.set_name("slots");
    all.mutable_values()->Add(words.begin(), words.end());
    return;
  }
  const float* next = words.data();
  for (const RowSlotKind& kind : TableRowSlots(table.optimizer().type())) {
    v1::RowSlot& slot = *row->add_slots();
    slot.set_name(kind.name);
    const size_t count = kind.words == RowSlotKind::Words::kOfValues ? table.dim() : 1;
    slot.mutable_values()->Add(next, next + count);
    if (kind.words == RowSlotKind::Words::kCount) {
      uint32_t bits;
      std::memcpy(&bits, next, sizeof bits);
      slot.set_values(0, static_cast<float>(bits));
    }
    next += count;
  }
}

}  // namespace weir
