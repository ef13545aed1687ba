#pragma once

#include <string>

// `weir import`: makes the weights of a safetensors file the initial weights of a job.
namespace weir {

struct ImportOptions {
  std::string file;
  std::string directory;
  // A checkpoint (or a folder of them) whose model the job has; empty: the file says it all.
  std::string like;
};

// Writes a checkpoint that holds the file's tensors and embedding tables (NAME/keys and NAME/values, as `weir
// export` writes them) and no training, for checkpoint.init_from. Their order and which of them are running
// statistics follow from `like`; without it from the places of their bytes and from PyTorch's names. Returns
// the exit code. 78: the file or its tensors cannot be taken, or the folder holds initial weights already.
int RunImport(const ImportOptions& options);

}  // namespace weir
