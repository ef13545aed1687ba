#include "ps_server/shard/versions/version_readers.h"

#include <algorithm>

#include "common/system/float_pool.h"

namespace weir {

std::shared_ptr<float> AllocateSlab(size_t elements) {
  const std::shared_ptr<void> memory = AllocateInHugePages(elements * sizeof(float));
  return {memory, static_cast<float*>(memory.get())};
}

SlabSource OrOwnMemory(SlabSource source) {
  return [source = std::move(source)](size_t elements) {
    std::shared_ptr<float> memory = source(elements);
    return memory != nullptr ? memory : AllocateSlab(elements);
  };
}

VersionReaders::VersionReaders(const Clock* clock, const ReaderLimits& limits,
                               std::function<void()> on_release)
    : clock_(clock), limits_(limits), on_release_(std::move(on_release)) {}

std::shared_ptr<const LentVersion> VersionReaders::Lend(uint64_t count, const Slab& weights,
                                                        const Holder& holder, bool making) {
  auto lent = std::make_unique<LentVersion>();
  lent->count = count;
  lent->weights = weights;
  {
    MutexLock lock(mutex_);
    lent->may_refer =
        static_cast<size_t>(std::count_if(written_off_.begin(), written_off_.end(), [&](const auto& version) {
          return version.second.trains() == holder.trains();
        })) < limits_.max_written_off;
    const auto [version, added] = read_.try_emplace(weights.get());
    if (added) {
      version->second.count = count;
      version->second.state = making ? State::kMaking : State::kPublished;
    }
    version->second.readers.emplace_back(lent.get(), holder);
  }
  return std::shared_ptr<const LentVersion>(
      lent.release(), [readers = shared_from_this()](LentVersion* done) { readers->Release(done); });
}

void VersionReaders::Release(LentVersion* done) {
  // The lock orders the reader's last read before the store's next write to this memory.
  MutexLock lock(mutex_);
  for (Versions* versions : {&read_, &written_off_}) {
    const auto version = versions->find(done->weights.get());
    if (version == versions->end()) continue;
    auto& readers = version->second.readers;
    const auto reader =
        std::find_if(readers.begin(), readers.end(), [&](const auto& r) { return r.first == done; });
    if (reader == readers.end()) continue;
    readers.erase(reader);
    if (readers.empty()) versions->erase(version);
    break;
  }
  delete done;
  if (on_release_) on_release_();
}

void VersionReaders::Publish(const float* weights) {
  MutexLock lock(mutex_);
  const auto version = read_.find(weights);
  if (version != read_.end()) version->second.state = State::kPublished;
}

void VersionReaders::Kill(const float* weights) {
  MutexLock lock(mutex_);
  const auto version = read_.find(weights);
  if (version == read_.end()) return;
  version->second.state = State::kDead;
  version->second.superseded = clock_->Now();
}

void VersionReaders::Supersede(const float* weights) {
  MutexLock lock(mutex_);
  const auto version = read_.find(weights);
  if (version != read_.end()) version->second.superseded = clock_->Now();
}

void VersionReaders::Freeze(std::set<const float*> memory) {
  MutexLock lock(mutex_);
  frozen_ = std::move(memory);
}

void VersionReaders::Thaw() {
  MutexLock lock(mutex_);
  frozen_.clear();
  if (on_release_) on_release_();
}

bool VersionReaders::AnyFrozen() const {
  MutexLock lock(mutex_);
  return !frozen_.empty();
}

bool VersionReaders::IsFrozen(const float* memory) const {
  MutexLock lock(mutex_);
  return frozen_.count(memory) > 0;
}

bool VersionReaders::AreRead(const float* weights) const {
  MutexLock lock(mutex_);
  return read_.count(weights) > 0;
}

bool VersionReaders::Version::trains() const {
  return std::any_of(readers.begin(), readers.end(),
                     [](const auto& reader) { return reader.second.trains(); });
}

bool VersionReaders::Is(Kind kind, const Versions::value_type& entry) const {
  const Version& version = entry.second;
  if (version.state == State::kMaking || frozen_.count(entry.first) > 0) return false;
  if (version.state == State::kDead) return kind == Kind::kDead;
  if (version.trains()) return kind == Kind::kOfWorkers;
  return kind == Kind::kOfReaders && version.superseded.has_value();
}

size_t VersionReaders::Count(Kind kind) const {
  size_t count = 0;
  for (const auto& version : read_) count += Is(kind, version);
  return count;
}

bool VersionReaders::MayPublish() const {
  MutexLock lock(mutex_);
  return Count(Kind::kOfWorkers) <= limits_.max_old;
}

bool VersionReaders::MayBuild() const {
  MutexLock lock(mutex_);
  return Count(Kind::kDead) < limits_.max_dead;
}

std::vector<VersionReaders::Held> VersionReaders::WriteOff(Kind kind, size_t most, absl::Time before) {
  std::vector<Held> written_off;
  while (Count(kind) > most) {
    auto oldest = read_.end();
    for (auto version = read_.begin(); version != read_.end(); ++version) {
      const Version& v = version->second;
      if (!Is(kind, *version) || !v.superseded.has_value() || *v.superseded > before) continue;
      if (oldest == read_.end() || v.count < oldest->second.count) oldest = version;
    }
    if (oldest == read_.end()) break;
    for (const auto& [lent, holder] : oldest->second.readers) lent->revoked = true;
    written_off.push_back(oldest->second.Describe());
    written_off_.insert(read_.extract(oldest));
  }
  return written_off;
}

std::vector<VersionReaders::Held> VersionReaders::RevokeLate() {
  const absl::Time now = clock_->Now();
  MutexLock lock(mutex_);
  std::vector<Held> all = WriteOff(Kind::kOfWorkers, limits_.max_old, now - limits_.patience);
  for (const auto& more : {WriteOff(Kind::kOfReaders, limits_.max_old, now),
                           WriteOff(Kind::kDead, limits_.max_dead - 1, now - limits_.patience)}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

void VersionReaders::Retire() {
  MutexLock lock(mutex_);
  on_release_ = nullptr;
  for (const Versions* versions : {&read_, &written_off_}) {
    for (const auto& [weights, version] : *versions) {
      for (const auto& [lent, holder] : version.readers) lent->revoked = true;
    }
  }
}

VersionReaders::Held VersionReaders::Version::Describe() const {
  Held held;
  held.count = count;
  held.dead = state == State::kDead;
  held.superseded = superseded;
  for (const auto& [lent, holder] : readers) held.holders.push_back(holder);
  return held;
}

std::vector<VersionReaders::Held> VersionReaders::held() const {
  std::vector<Held> all;
  MutexLock lock(mutex_);
  for (const auto& [weights, version] : read_) {
    if (version.state == State::kMaking || frozen_.count(weights) > 0) continue;
    all.push_back(version.Describe());
  }
  std::sort(all.begin(), all.end(), [](const Held& a, const Held& b) { return a.count < b.count; });
  return all;
}

size_t VersionReaders::written_off() const {
  MutexLock lock(mutex_);
  return written_off_.size();
}

}  // namespace weir
