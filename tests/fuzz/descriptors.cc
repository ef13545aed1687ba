#include "tests/fuzz/descriptors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>

#include "common/shared_memory/doorbell.h"
#include "common/system/shared_memory.h"

namespace weir {

UniqueFd DescriptorOf(char letter) {
  static const std::unique_ptr<SharedSegment> segment = SharedSegment::Create(kSegmentBytes).value();
  static const std::shared_ptr<DoorbellPage> bells = DoorbellPage::Create().value();
  switch (letter) {
    case 's':
      return UniqueFd(dup(segment->fd()));
    case 'b':
      return UniqueFd(dup(bells->fd()));
    case 'm':
      return UniqueFd(memfd_create("unsealed", MFD_CLOEXEC));
    case 'p':
      return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
    default:
      return UniqueFd();
  }
}

}  // namespace weir
