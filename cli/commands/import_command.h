#pragma once

#include <string>

// `weir import`: makes the weights of a safetensors file the initial weights of a job.
namespace weir {

struct ImportOptions {
  std::string file;
  std::string directory;
  // A checkpoint (or a folder of them) whose model the job has; empty: the file alone tells the model.
  std::string like;
};

// Writes a checkpoint that holds the file's tensors and embedding tables (NAME/keys and NAME/values, as `weir
// export` writes them) and no training, for checkpoint.init_from. `like` gives the order of the tensors, and
// tells which of them are running statistics. If `like` is empty, the order is that of the tensors' bytes in
// the file, and PyTorch's names tell the running statistics. Returns the exit code. 78: the file or its
// tensors cannot be used, or the folder holds initial weights already.
int RunImport(const ImportOptions& options);

}  // namespace weir
