"""Folders that change as the volumes of a Kubernetes Secret or ConfigMap do: all files at once."""
import os
import shutil
import tempfile

DATA = "..data"  # a link to the folder that has the files


def write_volume(folder, files, mode=0o644, group=0):
    """Gives `folder`, which may be a volume already, exactly these files (name -> text). FILE is a link to ..data/FILE, and ..data
    is swapped: who opens a file sees the old one or the new one, whole. Files are root's and the group's."""
    folder.mkdir(mode=0o755, exist_ok=True)
    data = folder / DATA
    old = data.resolve() if data.is_symlink() else None
    new = tempfile.mkdtemp(dir=folder, prefix="..")
    os.chmod(new, 0o755)
    for name, text in files.items():
        path = os.path.join(new, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chown(path, 0, group)
        os.chmod(path, mode)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"{DATA}/{name}")
    next_data = folder / "..data_tmp"
    next_data.symlink_to(os.path.basename(new))
    next_data.rename(data)
    for path in files_of(folder):
        if path.name not in files:
            path.unlink()
    if old is not None:
        shutil.rmtree(old)


def files_of(folder):
    return [path for path in folder.iterdir() if not path.name.startswith("..")]


def forget_reads(folder):
    """From now on were_read() asks for new reads. `folder` is in one of network.memory_folder."""
    for path in files_of(folder):
        os.utime(path, ns=(0, path.stat().st_mtime_ns))


def were_read(folder):
    """Whether each file of the volume was read since forget_reads()."""
    return all(path.stat().st_atime_ns > 0 for path in files_of(folder))
