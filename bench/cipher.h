#pragma once

namespace weir::bench {

// GB/s at which one thread encrypts records of 16 KiB with AES-256-GCM, the cipher that TLS 1.3 chooses
// first: as `openssl speed -evp aes-256-gcm -bytes 16384` measures it. The best of several short runs.
double CipherSpeed();

}  // namespace weir::bench
