#pragma once

#include <cstdint>
#include <string>
#include <vector>

// Reports the features of this machine that decide what Weir uses, and how fast Weir can be.
namespace weir {

struct HostReport {
  // Files of /proc and /sys are given as they are; "" if a file is not there.
  std::string kernel;       // "Linux 6.1.0-18-amd64"
  std::string cpu;          // model name
  std::string cpu_kernels;  // what Weir's own loops use: "avx512", "avx2" or "plain"
  int cores = 0;            // usable by this process
  uint64_t memory_bytes = 0, available_bytes = 0;
  uint64_t memory_limit_bytes = 0;  // of the container (cgroup v2, v1); 0: none

  std::string huge_pages;         // transparent ones of private memory: "always", "madvise", "never"
  std::string shared_huge_pages;  // of shared memory: "always", "within_size", "advise", "never", ...
  std::string no_shared_memory;   // why there is none (memfd_create); "": there is
  uint64_t open_files = 0;        // at once in a process; 0: no limit

  std::string congestion_control;               // the system's
  std::vector<std::string> congestion_choices;  // wire.congestion_control for this user

  struct Device {
    std::string name;        // "cuda:0"
    std::string model;       // "NVIDIA H100 80GB HBM3"
    std::string capability;  // "9.0"
    uint64_t memory_bytes = 0;
    int multiprocessors = 0;
    std::string unused;  // why it is not used; "": it is
  };
  std::string cuda_driver, cuda_runtime;  // "13.0"; "": none
  std::string cublas;                     // version; "": none
  std::string no_cublas;                  // why; "": there is
  std::string no_devices;                 // why; "": there are some
  std::vector<Device> devices;
};

// Looks at the host; changes nothing and takes no memory on a device. `root` stands before /proc and /sys,
// for tests.
HostReport LookAtHost(const std::string& root = "");

// Return the report for people, one line per finding, and as JSON with the same fields.
std::string HostReportText(const HostReport& report);
std::string HostReportJson(const HostReport& report);

}  // namespace weir
