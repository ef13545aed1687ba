"""Folders that change as the volumes of a Kubernetes Secret or ConfigMap do: all files at once."""
import ctypes
import os
import shutil
import struct
import tempfile

LIBC = ctypes.CDLL(None, use_errno=True)
IN_CLOSE_NOWRITE = 0x10  # sys/inotify.h
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


class Reads:
    """Sees whether each of the files is read, and closed again, from now on, by whomever and through whichever mount."""

    def __init__(self, paths):
        inotify = LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if inotify < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._events = os.fdopen(inotify, "rb", buffering=0)
        self._unread = {LIBC.inotify_add_watch(inotify, os.fsencode(path), IN_CLOSE_NOWRITE) for path in paths}
        if -1 in self._unread:
            raise OSError(ctypes.get_errno(), f"inotify_add_watch: one of {paths}")

    def all(self):
        for watch, mask, _, _ in struct.iter_unpack("iIII", self._events.read(1 << 16) or b""):
            if mask & IN_CLOSE_NOWRITE:
                self._unread.discard(watch)
        return not self._unread
