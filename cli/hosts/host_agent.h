#pragma once

namespace weir {

// The other end of a HostConnection, on a host of `weir up --hosts`: runs tasks for it, as messages on
// standard input ask (host_message.h). Returns when standard input has ended or has been silent for 15 s.
// Then this process's descendants have been killed, and its files are gone.
int RunHostAgent();

}  // namespace weir
